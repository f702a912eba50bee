"""Switches of torch's CUDA side. Those that only hold flags exist in every build of torch."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from typing import Any

import torch
from torch import _C

from msctx.switches.accelerator import current_device, memory_cap, synchronize_each_op, wait
from msctx.switches.base import Switch


def is_here() -> bool:
    return torch.backends.cuda.is_built() and torch.cuda.device_count() > 0


def _has_no_cache(on: bool) -> str:
    backend = torch.cuda.get_allocator_backend()
    return "" if backend == "native" else f"the allocator {backend} has no cache of torch's to switch off"


_caches = True
"""What was last written: torch has no public way to ask, and 2.11 none at all."""


def _keep(on: bool) -> None:
    global _caches
    _C._cuda_cudaCachingAllocator_enable(on)
    _caches = on


def _sanitizes() -> bool:
    found = sys.modules.get("torch.cuda._sanitizer")
    return found is not None and found.cuda_sanitizer.enabled


def _sanitize(on: bool) -> None:
    if on != _sanitizes():
        from torch.cuda._sanitizer import cuda_sanitizer

        cuda_sanitizer.enable() if on else cuda_sanitizer.disable()


# --- what this process holds on a GPU beyond torch's caching allocator, by NVIDIA's management library (NVML) -------------

NOT_AVAILABLE = 2**64 - 1
MOST = 1024
"""Processes on one device; of more nothing is known."""


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t, as the third version of the call fills it in."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


@cache
def nvml() -> Any:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        has_call = hasattr(library, "nvmlDeviceGetComputeRunningProcesses_v3")  # older drivers lack it
        return library if has_call and not library.nvmlInit_v2() else None
    except (OSError, AttributeError):
        return None


def used(uuid: str) -> int | None:
    """The bytes that this process holds on a device; ``None``: NVML does not report it.

    Where no process has our number (in a container NVML counts those of the host), the only one there is is us.
    """
    library, handle, count, found = nvml(), ctypes.c_void_p(), ctypes.c_uint(MOST), (_Process * MOST)()
    for kind in ("GPU", "MIG"):  # what NVML puts before the number of a device, or of a part of one
        if library and not library.nvmlDeviceGetHandleByUUID(f"{kind}-{uuid}".encode(), ctypes.byref(handle)):
            break
    else:
        return None
    if library.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), found):
        return None
    processes = found[: count.value]
    mine = [process for process in processes if process.pid == os.getpid()] or (processes if len(processes) == 1 else [])
    if not mine or any(process.used == NOT_AVAILABLE for process in mine):
        return None
    return int(sum(process.used for process in mine))


def overhead(device: int) -> int | None:
    """The bytes beside torch's caching allocator: the device's context, kernels, other libraries' own memory."""
    held = used(str(torch.cuda.get_device_properties(device).uuid))
    return None if held is None else max(0, held - torch.cuda.memory_reserved(device))


def observed() -> int | None:
    """The same of the current device; ``None`` before CUDA is initialised (asking would do that)."""
    return overhead(torch.cuda.current_device()) if torch.cuda.is_initialized() else None


SWITCHES = (
    Switch("torch.cudnn.deterministic", _C._get_cudnn_deterministic, _C._set_cudnn_deterministic),
    Switch("torch.cudnn.benchmark", _C._get_cudnn_benchmark, _C._set_cudnn_benchmark),
    Switch("torch.cudnn.enabled", lambda: torch.backends.cudnn.enabled),
    Switch("torch.cudnn.benchmark_limit", lambda: torch.backends.cudnn.benchmark_limit),
    Switch("torch.cudnn.depthwise_kernel", lambda: getattr(torch.backends.cudnn, "depthwise_kernel", None)),
    Switch(
        "torch.cuda.matmul.allow_fp16_reduced_precision_reduction",
        lambda: list(_C._get_cublas_allow_fp16_reduced_precision_reduction()),
    ),
    Switch(
        "torch.cuda.matmul.allow_bf16_reduced_precision_reduction",
        lambda: list(_C._get_cublas_allow_bf16_reduced_precision_reduction()),
    ),
    Switch("torch.cuda.matmul.allow_fp16_accumulation", lambda: torch.backends.cuda.matmul.allow_fp16_accumulation),
    Switch("torch.sdp.flash", torch.backends.cuda.flash_sdp_enabled),
    Switch("torch.sdp.mem_efficient", torch.backends.cuda.mem_efficient_sdp_enabled),
    Switch("torch.sdp.math", torch.backends.cuda.math_sdp_enabled),
    Switch("torch.sdp.cudnn", torch.backends.cuda.cudnn_sdp_enabled),
)
OF_DEVICE = (
    current_device("torch.cuda.current_device", lambda: torch.cuda),
    memory_cap("torch.cuda.memory_cap", lambda: torch.cuda, overhead),
    # by the functions below torch.cuda's, which does nothing before CUDA is initialised
    Switch("torch.cuda.caching_allocator", lambda: _caches, _keep, blocked=_has_no_cache),
    synchronize_each_op("torch.cuda.synchronize_each_op", lambda: torch.cuda),
    wait("torch.cuda.stream_sync_timeout", lambda: torch.cuda, "Stream"),
    wait("torch.cuda.event_sync_timeout", lambda: torch.cuda, "Event"),
    Switch("torch.cuda.sanitizer", _sanitizes, _sanitize),
    Switch("torch.cuda.context_overhead", observed),
)

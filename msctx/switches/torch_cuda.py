"""Switches of torch's CUDA side. Those that only hold flags exist in every build of torch."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from functools import cache, partial
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
        return None if library.nvmlInit_v2() else library
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


OF_CUDNN, OF_SDP = ("enabled", "benchmark_limit", "depthwise_kernel"), ("flash", "mem_efficient", "math", "cudnn")
OF_MATMUL: dict[str, Callable[[], Any]] = {
    "allow_fp16_reduced_precision_reduction": lambda: list(_C._get_cublas_allow_fp16_reduced_precision_reduction()),
    "allow_bf16_reduced_precision_reduction": lambda: list(_C._get_cublas_allow_bf16_reduced_precision_reduction()),
    "allow_fp16_accumulation": lambda: torch.backends.cuda.matmul.allow_fp16_accumulation,
}
SWITCHES = (
    Switch("torch.cudnn.deterministic", _C._get_cudnn_deterministic, _C._set_cudnn_deterministic),
    Switch("torch.cudnn.benchmark", _C._get_cudnn_benchmark, _C._set_cudnn_benchmark),
    *(Switch(f"torch.cudnn.{name}", partial(getattr, torch.backends.cudnn, name, None)) for name in OF_CUDNN),
    *(Switch(f"torch.cuda.matmul.{name}", read) for name, read in OF_MATMUL.items()),
    *(Switch(f"torch.sdp.{name}", getattr(torch.backends.cuda, f"{name}_sdp_enabled")) for name in OF_SDP),
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
)

"""What this process holds on a GPU beyond torch's caching allocator, by the count of NVIDIA's management library (NVML)."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any

import torch

LIBRARY = "libnvidia-ml.so.1"
KINDS = ("GPU", "MIG")
"""What NVML puts before the number of a device, or of a part of one."""
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
def _load(name: str) -> Any:
    try:
        library = ctypes.CDLL(name)
        return None if library.nvmlInit_v2() else library
    except (OSError, AttributeError):
        return None


def used(uuid: str, library: str = LIBRARY) -> int | None:
    """The bytes that this process holds on a device; ``None``: NVML does not report it.

    Where no process has our number (in a container NVML counts those of the host), the only one there is is us.
    """
    nvml, handle = _load(library), ctypes.c_void_p()
    if nvml is None or all(nvml.nvmlDeviceGetHandleByUUID(f"{kind}-{uuid}".encode(), ctypes.byref(handle)) for kind in KINDS):
        return None
    processes = _processes(nvml, handle)
    mine = [process for process in processes if process.pid == os.getpid()] or (processes if len(processes) == 1 else [])
    if not mine or any(process.used == NOT_AVAILABLE for process in mine):
        return None
    return int(sum(process.used for process in mine))


def _processes(nvml: Any, handle: ctypes.c_void_p) -> list[_Process]:
    ask: Any = getattr(nvml, "nvmlDeviceGetComputeRunningProcesses_v3", None)  # older drivers lack it
    count, found = ctypes.c_uint(MOST), (_Process * MOST)()
    return [] if ask is None or ask(handle, ctypes.byref(count), found) else found[: count.value]


def overhead(device: int) -> int | None:
    """The bytes beside torch's caching allocator: the device's context, kernels, other libraries' own memory."""
    held = used(str(torch.cuda.get_device_properties(device).uuid))
    return None if held is None else max(0, held - torch.cuda.memory_reserved(device))


def observed() -> int | None:
    """The same of the current device; ``None`` before CUDA is initialised (asking would do that)."""
    return overhead(torch.cuda.current_device()) if torch.cuda.is_initialized() else None

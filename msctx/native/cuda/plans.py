"""Answers the native core: which kernels run for a convolution of CUDA tensors, compiled and loaded when the first is launched."""

from __future__ import annotations

import ctypes
import threading
from ctypes import Structure, c_char, c_int32, c_int64, c_ubyte, c_uint32, c_void_p
from typing import Any

from msctx.errors import NativeError
from msctx.native.cuda import build, depthwise, driver
from msctx.native.cuda.depthwise import DTYPES, KERNELS, LAYOUTS, OPS, THREADS, DepthwiseProblem, Module, Parameters

PLACES = ("x", "w", "y", "workspace")
"""How the core numbers tensors."""


class CConvProblem(Structure):
    """``ConvProblem`` of kernels/include/msctx/conv.h."""

    _fields_ = [
        ("dims", c_int32),
        ("dtype", c_int32),
        *((name, c_int64) for name in ("n", "c", "k", "groups")),
        *((name, c_int64 * 3) for name in ("extent", "out", "window", "stride", "pad", "dilation")),
    ]


class CudaLaunch(Structure):
    """``CudaLaunch`` of kernels/glue/cuda_depthwise.h."""

    _fields_ = [
        ("function", c_void_p),
        ("grid", c_uint32),
        ("threads", c_uint32),
        ("count", c_int32),
        ("tensor", c_int32 * 4),
        ("bytes", c_int32),
        ("parameters", c_ubyte * 256),
    ]


class CudaPlan(Structure):
    """``CudaPlan`` of kernels/glue/cuda_depthwise.h."""

    _fields_ = [
        ("workspace", c_int64),
        ("additions", c_int64),
        ("launches", c_int32),
        ("launch", CudaLaunch * 2),
        ("obstacle", c_char * 512),
    ]


_lock = threading.Lock()
_loaded: dict[tuple[int, Module], driver.Kernels] = {}
"""By context, of which there is one for each GPU."""


def plan(requested: int, op: int, channels_last: int, load: int, found: int) -> int:
    """Called by the core in the thread of the convolution, on its device, with the places of a problem and of what to fill in.

    0: there is an ``obstacle``, which stays; -1: there is one this time.
    """
    into = CudaPlan.from_address(found)
    try:
        fill(into, problem_of(CConvProblem.from_address(requested), bool(channels_last)), OPS[op], bool(load))
    except NativeError as error:
        obstacle, code = str(error), 0
    except (OSError, MemoryError) as error:  # no room on the disk, for instance
        obstacle, code = repr(error), -1
    else:
        return 1
    into.obstacle = obstacle.encode(errors="replace")[:511].decode(errors="ignore").encode()
    return code


def problem_of(requested: CConvProblem, channels_last: bool) -> DepthwiseProblem:
    """A depthwise problem of the core's; 1-D is 2-D of height 1."""
    pairs: dict[str, Any] = {
        name: tuple(getattr(requested, name)[1:]) for name in ("extent", "window", "stride", "pad", "dilation")
    }
    return DepthwiseProblem(
        list(DTYPES)[requested.dtype],
        LAYOUTS[channels_last],
        requested.n,
        requested.c,
        requested.k // requested.c,
        **pairs,
    )


def fill(found: CudaPlan, problem: DepthwiseProblem, op: str, load: bool) -> None:
    """Write what runs into *found*; with *load* its kernels are in the context that is current.

    Raises:
        NativeError: they cannot be compiled or loaded.
    """
    found.workspace = depthwise.workspace(problem, op)
    found.additions = depthwise.additions(problem, op)
    launches = depthwise.launches(problem, op)
    found.launches = len(launches)
    if load:
        with driver.relaxed():
            for slot, launch in zip(found.launch, launches, strict=False):
                slot.function = kernels(KERNELS[launch.kernel]).function(launch.kernel)
    for slot, launch in zip(found.launch, launches, strict=False):
        slot.grid, slot.threads, slot.count = launch.grid, THREADS, len(launch.tensors)
        slot.tensor = (c_int32 * 4)(*(PLACES.index(name) for name in launch.tensors))
        slot.bytes = ctypes.sizeof(Parameters)
        ctypes.memmove(slot.parameters, ctypes.byref(launch.parameters), slot.bytes)


def kernels(module: Module) -> driver.Kernels:
    """A module's kernels in the context that is current; compiled, if they are not cached, and loaded the first time.

    Raises:
        NativeError: there is no compiler, or the driver does not take what it made.
    """
    key = (driver.context(), module)
    with _lock:
        if key not in _loaded:
            _loaded[key] = driver.Kernels(build.cubin(module, driver.arch()))
        return _loaded[key]

"""Compiles the CUDA kernels, keeps them in the cache, and answers the native core which of them run for a convolution."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import Structure, c_char, c_int32, c_int64, c_ubyte, c_uint32, c_void_p
from dataclasses import dataclass
from typing import Any

from msctx.errors import NativeError
from msctx.native import cachedir
from msctx.native.build import first_lines, read_sources
from msctx.native.cachedir import digest
from msctx.native.cuda import depthwise_launches, driver
from msctx.native.cuda.depthwise_launches import (
    DTYPES,
    KERNELS,
    LAYOUTS,
    MODULES,
    OPS,
    THREADS,
    DepthwiseProblem,
    Module,
    Parameters,
)
from msctx.native.cuda.driver import Nvrtc
from msctx.shipped import KERNEL_SOURCES

FORMAT = 3
"""Part of every key: to be raised when what a build means changes."""
SOURCES = KERNEL_SOURCES / "cuda"
SEPARATOR = b"\0"
"""In the cache, between what ptxas told and the cubin."""


@dataclass(frozen=True, slots=True)
class Report:
    """A module for one arch. *log* has what ptxas tells of each kernel; *error*: why there is no *cubin*."""

    module: Module
    arch: str
    compiler: str
    cached: bool = False
    cubin: bytes = b""
    log: str = ""
    error: str = ""

    def as_dict(self) -> dict[str, Any]:
        said = {"module": str(self.module), "arch": self.arch, "compiler": self.compiler, "cached": self.cached}
        return {**said, "bytes": len(self.cubin), "error": self.error}


def build(archs: Sequence[str]) -> list[Report]:
    """Compile what is not cached; a report for each module and arch.

    Raises:
        NativeError: there is no compiler, no source, or no cache to write to.
    """
    tool, files = driver.find(), _read()
    work = [(module, arch) for module in MODULES for arch in archs]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return [*pool.map(lambda each: _compiled(tool, files, *each), work)]


def cubin(module: Module, arch: str) -> bytes:
    """A module that is ready to be loaded.

    Raises:
        NativeError: as build(), or the compiler rejects the source.
    """
    found = _compiled(tool := driver.find(), _read(), module, arch)
    if found.error:
        raise NativeError(f"{SOURCES / module.source} cannot be compiled for {arch} by {tool}:\n{found.error}")
    return found.cubin


def origin() -> str:
    """What stands for the sources of all kernels.

    Raises:
        NativeError: there are none.
    """
    return digest(FORMAT, _read())


def _read() -> dict[str, bytes]:
    return read_sources(SOURCES, (".cu", ".cuh"))


def _compiled(tool: Nvrtc, files: Mapping[str, bytes], module: Module, arch: str) -> Report:
    """From the cache, or compiled now."""
    used = {name: data for name, data in files.items() if name == module.source or name.endswith(".cuh")}
    name = f"{digest(FORMAT, used, str(module), tool.version, arch)[:32]}.cubin"
    path = cachedir.cached("cuda", name)
    if is_new := path is None:
        data, log = tool.compile(used, module, arch)
        if data is None:
            return Report(module, arch, str(tool), error=first_lines(log) or "the compiler gives no reason")
        path = cachedir.folder("cuda") / name
        with cachedir.naming(path):
            cachedir.write(path, log.encode() + SEPARATOR + data)
    told, _, cubin = path.read_bytes().partition(SEPARATOR)
    return Report(module, arch, str(tool), not is_new, cubin, told.decode())


PLACES = ("x", "w", "y", "workspace")
"""How the core numbers tensors."""


class CConvProblem(Structure):
    """``ConvProblem`` of kernels/include/msctx/interface.h."""

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
    found.workspace = depthwise_launches.workspace(problem, op)
    found.additions = depthwise_launches.additions(problem, op)
    launches = depthwise_launches.launches(problem, op)
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
            _loaded[key] = driver.Kernels(cubin(module, driver.arch()))
        return _loaded[key]

"""Compiles the kernels of the manifest to cubins, and keeps them in the cache."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msctx.errors import NativeError
from msctx.native import cachedir
from msctx.native.build import first_lines
from msctx.native.build_spec import read_sources
from msctx.native.cachedir import digest
from msctx.native.cuda import nvrtc
from msctx.native.cuda.depthwise import ARCHS, MODULES, Module
from msctx.native.cuda.nvrtc import Nvrtc
from msctx.shipped import KERNEL_SOURCES

FORMAT = 3
"""Part of every key: to be raised when what a build means changes."""
SUFFIXES = (".cu", ".cuh")
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


def build(
    archs: Sequence[str] = ARCHS,
    *,
    modules: Sequence[Module] = MODULES,
    tool: Nvrtc | None = None,
    sources: Path | None = None,
) -> list[Report]:
    """Compile what is not cached; a report for each of *modules* and *archs*. *sources* is the folder of the .cu files.

    Raises:
        NativeError: there is no compiler, no source, or no cache to write to.
    """
    tool = tool or nvrtc.find()
    work = [(module, arch) for module in modules for arch in archs]
    files = _read(sources, modules)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return [*pool.map(lambda each: _compiled(tool, files, *each), work)]


def cubin(module: Module, arch: str, *, tool: Nvrtc | None = None, sources: Path | None = None) -> bytes:
    """A module that is ready to be loaded.

    Raises:
        NativeError: as build(), or the compiler rejects the source.
    """
    found = _compiled(tool := tool or nvrtc.find(), _read(sources, [module]), module, arch)
    if found.error:
        source = (sources or KERNEL_SOURCES / "cuda") / module.source
        raise NativeError(f"{source} cannot be compiled for {arch} by {tool}:\n{found.error}")
    return found.cubin


def origin(sources: Path | None = None) -> str:
    """What stands for the sources of all kernels.

    Raises:
        NativeError: there are none.
    """
    return digest(FORMAT, _read(sources, []))


def _read(sources: Path | None, modules: Sequence[Module]) -> dict[str, bytes]:
    root = sources or KERNEL_SOURCES / "cuda"
    files = read_sources(root, SUFFIXES)
    for module in modules:
        if module.source not in files:
            raise NativeError(f"{root / module.source}: is not there; msctx is not installed completely, install it again")
    return files


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

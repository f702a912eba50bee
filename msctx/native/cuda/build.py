"""Compiles the kernels of the manifest to cubins, keeps them in the cache, and checks the compiler's report against budgets."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from msctx.errors import NativeError
from msctx.native import artifacts, cachedir, compiler
from msctx.native.artifacts import Artifact, digest, hashes
from msctx.native.build_spec import read_sources
from msctx.native.cuda import nvrtc
from msctx.native.cuda.manifest import ARCHS, KERNELS, Kernel, Module
from msctx.native.cuda.nvrtc import Nvrtc
from msctx.shipped import KERNEL_SOURCES

FORMAT = 2
"""Part of every key: to be raised when what a build means changes."""
SUFFIXES = (".cu", ".cuh")


@dataclass(frozen=True, slots=True)
class Usage:
    """What a kernel takes: *registers* of a thread, static *shared* memory of a block, spills of a thread to local memory (bytes)."""

    registers: int
    spill_stores: int
    spill_loads: int
    shared: int


@dataclass(frozen=True, slots=True)
class Report:
    """A kernel for one arch. *bytes* are its instructions, *cubin_bytes* the whole module's; *usage* is ``None`` with an *error*."""

    kernel: Kernel
    arch: str
    compiler: str
    cached: bool = False
    bytes: int = 0
    cubin_bytes: int = 0
    usage: Usage | None = None
    error: str = ""

    @property
    def exceeded(self) -> list[str]:
        """Each budget that does not hold, in a few words."""
        if self.usage is None:
            return []
        found = {
            "registers": (self.usage.registers, self.kernel.registers),
            "bytes of spills": (self.usage.spill_stores + self.usage.spill_loads, self.kernel.spills),
            "bytes of shared memory": (self.usage.shared, self.kernel.shared),
        }
        return [f"{took} {what}, budget {budget}" for what, (took, budget) in found.items() if took > budget]

    @property
    def is_good(self) -> bool:
        return not self.error and not self.exceeded

    def as_dict(self) -> dict[str, Any]:
        kernel = self.kernel
        usage = asdict(self.usage) if self.usage else dict.fromkeys(Usage.__slots__)
        return {
            "name": kernel.name,
            "module": str(kernel.module),
            "threads": kernel.threads,
            **{name: getattr(self, name) for name in ("arch", "compiler", "cached", "bytes", "cubin_bytes")},
            **usage,
            "dynamic_shared": kernel.dynamic_shared,
            "budget": {"registers": kernel.registers, "spills": kernel.spills, "shared": kernel.shared},
            "within_budget": self.is_good,
            "exceeded": self.exceeded,
            "error": self.error,
        }


def build(
    archs: Sequence[str] = ARCHS,
    *,
    kernels: Mapping[str, Kernel] = KERNELS,
    tool: Nvrtc | None = None,
    sources: Path | None = None,
    done: Callable[[Module, str, str], None] = lambda module, arch, log: None,
) -> list[Report]:
    """Compile what is not cached; a report for each of *kernels* and *archs*, in the order of the manifest.

    *sources* is the folder of the .cu files; *done* gets each module's log.

    Raises:
        NativeError: there is no compiler, no source, or no cache to write to.
    """
    tool = tool or nvrtc.find()
    wanted = [(kernel, arch) for kernel in kernels.values() for arch in archs]
    work = list(dict.fromkeys((kernel.module, arch) for kernel, arch in wanted))
    files = _read(sources, [module for module, _ in work])
    cachedir.usable()

    def job(module: Module, arch: str) -> Artifact | str:
        found = _obtain(tool, files, module, arch)
        done(module, arch, found if isinstance(found, str) else found.note["log"])
        return found

    made = dict(zip(work, compiler.side_by_side([partial(job, *each) for each in work]), strict=True))
    return [_report(kernel, arch, str(tool), made[kernel.module, arch]) for kernel, arch in wanted]


def cubin(module: Module, arch: str, *, tool: Nvrtc | None = None, sources: Path | None = None) -> bytes:
    """A module that is ready to be loaded.

    Raises:
        NativeError: as build(), or the compiler rejects the source.
    """
    tool = tool or nvrtc.find()
    found = _obtain(tool, _read(sources, [module]), module, arch)
    if isinstance(found, str):
        source = (sources or KERNEL_SOURCES / "cuda") / module.source
        raise NativeError(f"{source} cannot be compiled for {arch} by {tool}:\n{_shown(found)}")
    return found.data


def origin(sources: Path | None = None) -> str:
    """What stands for the sources of all kernels.

    Raises:
        NativeError: there are none.
    """
    return digest(FORMAT, hashes(_read(sources, [])))


def _read(sources: Path | None, modules: Sequence[Module]) -> dict[str, bytes]:
    root = sources or KERNEL_SOURCES / "cuda"
    files = read_sources(root, SUFFIXES)
    for module in modules:
        if module.source not in files:
            raise NativeError(f"{root / module.source}: is not there; msctx is not installed completely, install it again")
    return files


def _obtain(tool: Nvrtc, files: Mapping[str, bytes], module: Module, arch: str) -> Artifact | str:
    """The module's cubin from the cache or compiled now, or the log of a compiler that rejected it."""
    used = {name: data for name, data in files.items() if name == module.source or name.endswith(".cuh")}

    def make(scratch: Path) -> tuple[bytes | None, dict[str, Any]]:
        data, log = tool.compile(used, module, arch)
        return data, {"log": log}

    key = digest(FORMAT, hashes(used), str(module), tool.version, arch)
    return artifacts.obtain("cuda", f"{key[:32]}.cubin", make)


def _report(kernel: Kernel, arch: str, compiler: str, made: Artifact | str) -> Report:
    if isinstance(made, str):
        return Report(kernel, arch, compiler, error=_shown(made))
    size, usage = len(made.data), usages(made.note["log"]).get(kernel.name)
    if usage is None:
        error = f"{kernel.module.source} compiles, but the compiler reports no kernel of this name"
        return Report(kernel, arch, compiler, made.cached, cubin_bytes=size, error=error)
    return Report(kernel, arch, compiler, made.cached, code_sizes(made.data).get(kernel.name, 0), size, usage)


def usages(log: str) -> dict[str, Usage]:
    """The report of ``ptxas -v``, kernel by kernel."""
    found = {}
    for part in re.split(r"Compiling entry function ", log)[1:]:
        name = re.match(r"'([^']+)'", part)
        spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", part)
        registers = re.search(r"Used (\d+) registers", part)
        shared = re.search(r"(\d+)(?:\+\d+)? bytes smem", part)
        if name and spills and registers:
            found[name[1]] = Usage(int(registers[1]), int(spills[1]), int(spills[2]), int(shared[1]) if shared else 0)
    return found


def code_sizes(cubin: bytes) -> dict[str, int]:
    """Bytes of instructions of each kernel: the sections ``.text.<kernel>`` of a cubin, which is a 64-bit ELF file."""
    if cubin[:5] != b"\x7fELF\x02":
        return {}
    at, count, names = struct.unpack_from("<Q", cubin, 40)[0], *struct.unpack_from("<HH", cubin, 60)
    sections = [struct.unpack_from("<IIQQQQ", cubin, at + 64 * i) for i in range(count)]
    strings = sections[names][4]
    found = {}
    for name, _, _, _, _, size in sections:
        text = cubin[strings + name : cubin.index(b"\0", strings + name)].decode()
        if text.startswith(".text."):
            found[text.removeprefix(".text.")] = size
    return found


def _shown(log: str) -> str:
    return compiler.first_lines(log) or "the compiler gives no reason"

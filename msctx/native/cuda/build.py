"""Compiles the kernels of the manifest to cubins, keeps them in the cache, and checks the compiler's report on them against budgets.

The cache: ``cuda/<key>.cubin`` and ``.log`` (the compiler's messages), by everything they were made from.
"""

from __future__ import annotations

import os
import re
import struct
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from msctx.errors import NativeError
from msctx.native import cachedir
from msctx.native.build_spec import digest, sha256
from msctx.native.cuda import compilers
from msctx.native.cuda.compilers import Compiled, Tool
from msctx.native.cuda.manifest import ARCHS, KERNELS, Kernel, Module
from msctx.shipped import KERNEL_SOURCES

FORMAT = 1
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
    cached: bool
    bytes: int = 0
    cubin_bytes: int = 0
    usage: Usage | None = None
    error: str = ""

    @property
    def exceeded(self) -> list[str]:
        """Each budget that does not hold, in a few words."""
        if self.usage is None:
            return []
        spills = self.usage.spill_stores + self.usage.spill_loads
        found = {
            "registers": (self.usage.registers, self.kernel.registers),
            "bytes of spills": (spills, self.kernel.spills),
            "bytes of shared memory": (self.usage.shared, self.kernel.shared),
        }
        return [f"{took} {what}, budget {budget}" for what, (took, budget) in found.items() if took > budget]

    @property
    def is_good(self) -> bool:
        return not self.error and not self.exceeded

    def as_dict(self) -> dict[str, Any]:
        kernel = self.kernel
        usage = asdict(self.usage) if self.usage else dict.fromkeys(("registers", "spill_stores", "spill_loads", "shared"))
        return {
            "name": kernel.name,
            "arch": self.arch,
            "module": str(kernel.module),
            "compiler": self.compiler,
            "cached": self.cached,
            "threads": kernel.threads,
            "bytes": self.bytes,
            "cubin_bytes": self.cubin_bytes,
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
    tool: Tool | None = None,
    sources: Path | None = None,
    done: Callable[[Module, str, Compiled], None] = lambda module, arch, compiled: None,
) -> list[Report]:
    """Compile what is not cached; a report for each of *kernels* and *archs*, in the order of the manifest.

    *tool* is the compiler (nvcc, else NVRTC), *sources* the folder of the .cu files; *done* is called for each module.

    Raises:
        NativeError: there is no compiler, no source, or no cache to write to.
    """
    tool, root = tool or compilers.find(), sources or KERNEL_SOURCES / "cuda"
    cachedir.usable()
    work = list(dict.fromkeys((kernel.module, arch) for kernel in kernels.values() for arch in archs if arch in kernel.archs))
    files = _read(root, [module for module, _ in work])

    def one(module: Module, arch: str) -> tuple[Compiled, bool]:
        found = _made(tool, files, module, arch)
        done(module, arch, found[0])
        return found

    with ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), len(work)) or 1) as pool:
        try:
            pending = {key: pool.submit(one, *key) for key in work}
            made = {key: future.result() for key, future in pending.items()}
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [
        _report(kernel, arch, str(tool), *made[kernel.module, arch])
        for kernel in kernels.values()
        for arch in archs
        if arch in kernel.archs
    ]


def cubin(module: Module, arch: str, *, tool: Tool | None = None, sources: Path | None = None) -> bytes:
    """A module that is ready to be loaded.

    Raises:
        NativeError: as build(), or the compiler refuses the source.
    """
    tool, root = tool or compilers.find(), sources or KERNEL_SOURCES / "cuda"
    found, _ = _made(tool, _read(root, [module]), module, arch)
    if found.cubin is None:
        raise NativeError(f"{root / module.source} cannot be compiled for {arch} by {tool}:\n{_shown(found.log)}")
    return found.cubin


def origin(sources: Path | None = None) -> str:
    """What stands for the sources of all kernels.

    Raises:
        NativeError: there are none.
    """
    return digest(FORMAT, {name: sha256(data) for name, data in _read(sources or KERNEL_SOURCES / "cuda", []).items()})


def _read(root: Path, modules: Sequence[Module]) -> dict[str, bytes]:
    try:
        files = {path.name: path.read_bytes() for path in sorted(root.iterdir()) if path.suffix in SUFFIXES}
    except OSError as error:
        raise NativeError(f"{error.filename or root}: cannot be read: {error.strerror}; install msctx again") from None
    for module in modules:
        if module.source not in files:
            raise NativeError(f"{root / module.source}: is not there; msctx is not installed completely, install it again")
    return files


def _made(tool: Tool, files: Mapping[str, bytes], module: Module, arch: str) -> tuple[Compiled, bool]:
    """The module from the cache (True), or compiled now and kept there. What is refused is not kept."""
    used = {name: data for name, data in files.items() if name == module.source or name.endswith(".cuh")}
    identity = (type(tool).__name__, tool.version)
    key = digest(FORMAT, {name: sha256(data) for name, data in used.items()}, str(module), identity, arch)[:32]
    cache = cachedir.folder("cuda")
    with cachedir.telling(cache), FileLock(cache / f"{key}.lock", mode=0o600):  # whoever comes second finds it done
        if (found := _cached(cache, key)) is not None:
            return found, True
        with tempfile.TemporaryDirectory(prefix="cuda.", dir=cachedir.folder("tmp"), ignore_cleanup_errors=True) as scratch:
            made = tool.compile(used, module, arch, Path(scratch))
        if made.cubin is not None:
            cachedir.write(cache / f"{key}.cubin", made.cubin)
            cachedir.write(cache / f"{key}.log", f"{sha256(made.cubin)}\n{made.log}".encode())  # last: it vouches for the cubin
    return made, False


def _cached(cache: Path, key: str) -> Compiled | None:
    paths = cache / f"{key}.log", cache / f"{key}.cubin"
    if not all(map(cachedir.is_own_file, paths)):
        return None
    with suppress(FileNotFoundError):  # another process tidies up
        note, data = paths[0].read_text(encoding="utf-8", errors="replace"), paths[1].read_bytes()
        checksum, _, log = note.partition("\n")
        if checksum == sha256(data):
            with suppress(OSError):  # what is used stays
                for path in paths:
                    os.utime(path)
            return Compiled(data, log)
    return None


def _report(kernel: Kernel, arch: str, compiler: str, made: Compiled, cached: bool) -> Report:
    if made.cubin is None:
        return Report(kernel, arch, compiler, cached, error=_shown(made.log))
    usage = usages(made.log).get(kernel.name)
    if usage is None:
        error = f"{kernel.module.source} compiles, but the compiler reports no kernel of this name"
        return Report(kernel, arch, compiler, cached, cubin_bytes=len(made.cubin), error=error)
    return Report(kernel, arch, compiler, cached, code_sizes(made.cubin).get(kernel.name, 0), len(made.cubin), usage)


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
        begin = strings + name
        text = cubin[begin : cubin.index(b"\0", begin)].decode()
        if text.startswith(".text."):
            found[text.removeprefix(".text.")] = size
    return found


def _shown(log: str) -> str:
    """The first lines of what went wrong."""
    lines = [line for line in log.splitlines() if line.strip() and "ptxas info" not in line]
    return "\n".join([*lines[:12], *(["…"] if len(lines) > 12 else [])]) or "the compiler gives no reason"

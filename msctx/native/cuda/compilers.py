"""What makes a cubin of a module: nvcc where there is one, else NVRTC, the compiler library of CUDA that also comes as a wheel."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from msctx.errors import NativeError
from msctx.native.children import Children
from msctx.native.compiler import Compiled, ask, identity, run
from msctx.native.cuda.manifest import Module

INSTALL = "install nvcc (the CUDA toolkit 12 or newer), or `pip install 'msctx[cuda]'` for NVRTC"
MAJORS = (13, 12)
"""Of NVRTC, the best first: what knows sm_90a."""
LIMIT = 600
"""Seconds that nvcc may take for a module: whoever needs the same module waits for its lock meanwhile."""


@dataclass(frozen=True, slots=True)
class Nvcc:
    """The program; *version* is its own, such as 13.0.88."""

    command: str
    version: str

    def __str__(self) -> str:
        return f"nvcc {self.version}"

    def compile(self, children: Children, files: Mapping[str, bytes], module: Module, arch: str, scratch: Path) -> Compiled:
        """Compile for *arch* (sm_…); *files* are the sources by name, *scratch* is an empty folder of the call's own."""
        for name, data in files.items():
            (scratch / name).write_bytes(data)
        result = scratch / "result.cubin"
        # -arch=sm_90a would also compile for a compute_90 that lacks its instructions
        target = f"-gencode=arch={arch.replace('sm_', 'compute_')},code={arch}"
        macros = [f"-D{macro}" for macro in module.macros]
        words = [self.command, "-std=c++17", "-cubin", target, "-Xptxas", "-v", *macros, module.source, "-o", result.name]
        made = run(children, words, result, cwd=scratch, scratch=scratch, limit=LIMIT)
        return made if made.data or made.log else Compiled(None, f"{self.command} {made.why} ({module})")


@dataclass(frozen=True, slots=True)
class Nvrtc:
    """The library at *path*; *version* is its own and the size of its file, which distinguishes releases of one version."""

    path: str
    version: str

    def __str__(self) -> str:
        return f"NVRTC {self.version.split()[0]}"

    def compile(self, children: Children, files: Mapping[str, bytes], module: Module, arch: str, scratch: Path) -> Compiled:
        """The same from memory, in this process: neither *children* nor *scratch* is used."""
        library, program, source = _loaded(self.path), ctypes.c_void_p(), module.source
        headers = [name for name in files if name != source]
        contents, names = _texts(files[name] for name in headers), _texts(name.encode() for name in headers)
        code = library.nvrtcCreateProgram(ctypes.byref(program), files[source], source.encode(), len(headers), contents, names)
        _check(library, code)
        try:
            words = [f"--gpu-architecture={arch}", "--std=c++17", "--ptxas-options=-v", *(f"-D{m}" for m in module.macros)]
            code = library.nvrtcCompileProgram(program, len(words), _texts(word.encode() for word in words))
            log = _bytes(library, program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            if code:
                return Compiled(None, log or _reason(library, code))
            return Compiled(_bytes(library, program, "CUBIN"), log)
        finally:
            library.nvrtcDestroyProgram(ctypes.byref(program))


Tool = Nvcc | Nvrtc


def find() -> Tool:
    """nvcc if it is there and works, else NVRTC.

    Raises:
        NativeError: there is neither.
    """
    nvcc = find_nvcc()
    if isinstance(nvcc, Nvcc):
        return nvcc
    nvrtc = find_nvrtc()
    if isinstance(nvrtc, Nvrtc):
        return nvrtc
    raise NativeError(f"no compiler for CUDA kernels: {nvcc}; {nvrtc}; {INSTALL}")


def find_nvcc() -> Nvcc | str:
    """nvcc of CUDA_HOME, else the first on PATH; or why there is none, in a few words."""
    home = os.environ.get("CUDA_HOME", "")
    path = shutil.which("nvcc", path=os.path.join(home, "bin")) if home else None
    path = path or shutil.which("nvcc")
    if path is None:
        return "no nvcc on PATH" + (f" or in CUDA_HOME ({home})" if home else ", and CUDA_HOME is not set")
    if not shutil.which("g++") and not os.environ.get("NVCC_CCBIN"):
        return f"{path} needs g++, which is not on PATH"
    path = os.path.abspath(path)
    version = _nvcc_version(path, identity(path))
    return Nvcc(path, version) if version else f"{path} does not print a --version"


def find_nvrtc() -> Nvrtc | str:
    """NVRTC of the wheels beside us, else of CUDA_HOME, else where the system looks for libraries; or why there is none."""
    broken = ""
    for path in _nvrtc_places():
        try:
            library = _loaded(path)
        except OSError as error:
            broken = broken or (f", {path} cannot be loaded ({error})" if os.path.isabs(path) else "")
            continue
        major, minor = ctypes.c_int(), ctypes.c_int()
        _check(library, library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        size = f" ({os.path.getsize(path)} bytes)" if os.path.isabs(path) else ""
        return Nvrtc(path, f"{major.value}.{minor.value}{size}")
    names = " or ".join(f"libnvrtc.so.{major}" for major in MAJORS)
    return f"no {names} in the nvidia wheels, CUDA_HOME or the system's libraries{broken}"


def _nvrtc_places() -> Iterator[str]:
    try:
        spec = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        spec = None
    folders = [Path(folder) for folder in (spec.submodule_search_locations if spec else None) or ()]
    home = os.environ.get("CUDA_HOME", "")
    for major in MAJORS:
        for folder in folders:
            yield from map(str, sorted(folder.glob(f"*/lib/libnvrtc.so.{major}")))
        if home and (path := Path(home, "lib64", f"libnvrtc.so.{major}")).exists():
            yield str(path)
        yield f"libnvrtc.so.{major}"


@lru_cache(maxsize=8)
def _nvcc_version(command: str, _identity: tuple[int, ...]) -> str:
    found = re.search(r"\bV(\d+\.\d+\.\d+)", ask([command], "--version").stdout)
    return found[1] if found else ""


@lru_cache(maxsize=8)
def _loaded(path: str) -> ctypes.CDLL:
    # NVRTC opens this one by its name alone, which the loader then finds loaded
    for builtins in sorted(Path(path).parent.glob("libnvrtc-builtins.so.*")) if os.path.isabs(path) else ():
        ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(path)
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


def _bytes(library: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(library, getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    found = ctypes.create_string_buffer(size.value)
    _check(library, getattr(library, f"nvrtcGet{what}")(program, found))
    return found.raw


def _texts(texts: Iterable[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    found = [*texts]
    return (ctypes.c_char_p * len(found))(*found)


def _reason(library: ctypes.CDLL, code: int) -> str:
    return f"NVRTC: {(library.nvrtcGetErrorString(code) or b'').decode(errors='replace')} ({code})"


def _check(library: ctypes.CDLL, code: int) -> None:
    if code:
        raise NativeError(f"{_reason(library, code)}; another release of it may help: {INSTALL}")

"""NVRTC, CUDA's compiler as a library: it comes with the CUDA builds of torch, with the CUDA toolkit, and as a wheel."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from msctx.errors import NativeError
from msctx.native.cuda.depthwise import Module

INSTALL = "install the CUDA toolkit (12 or newer), or `pip install 'msctx[cuda]'`"
MAJORS = (13, 12)
"""The best first: what knows sm_90a."""


@dataclass(frozen=True, slots=True)
class Nvrtc:
    """The library at *path*; *version* is its own and the size of its file, which distinguishes releases of one version."""

    path: str
    version: str

    def __str__(self) -> str:
        return f"NVRTC {self.version.split()[0]}"

    def compile(self, files: Mapping[str, bytes], module: Module, arch: str) -> tuple[bytes | None, str]:
        """The cubin for *arch* (sm_…), ``None`` where the source is rejected, and the log with ptxas's account of each kernel.

        *files* are the sources by name.
        """
        library, program, source = _loaded(self.path), ctypes.c_void_p(), module.source
        headers = [name for name in files if name != source]
        contents, names = _texts(files[name] for name in headers), _texts(name.encode() for name in headers)
        create = library.nvrtcCreateProgram
        _check(library, create(ctypes.byref(program), files[source], source.encode(), len(headers), contents, names))
        try:
            words = [f"--gpu-architecture={arch}", "--std=c++17", "--ptxas-options=-v", *(f"-D{m}" for m in module.macros)]
            code = library.nvrtcCompileProgram(program, len(words), _texts(word.encode() for word in words))
            log = _bytes(library, program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            return (None, log or _reason(library, code)) if code else (_bytes(library, program, "CUBIN"), log)
        finally:
            library.nvrtcDestroyProgram(ctypes.byref(program))


def find() -> Nvrtc:
    """NVRTC of the wheels beside us, else of the CUDA toolkit, else where the system looks for libraries.

    Raises:
        NativeError: it is nowhere.
    """
    broken = ""
    for path in _places():
        is_file = os.path.isabs(path)
        try:
            library = _loaded(path)
        except OSError as error:
            broken = broken or (f", {path} cannot be loaded ({error})" if is_file else "")
            continue
        major, minor = ctypes.c_int(), ctypes.c_int()
        _check(library, library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        size = f" ({os.path.getsize(path)} bytes)" if is_file else ""
        return Nvrtc(path, f"{major.value}.{minor.value}{size}")
    names = " or ".join(f"libnvrtc.so.{major}" for major in MAJORS)
    where = "the nvidia wheels, the CUDA toolkit (CUDA_HOME, or that of nvcc on PATH) or the system's libraries"
    raise NativeError(f"no compiler for CUDA kernels: no {names} in {where}{broken}; {INSTALL}")


def _places() -> Iterator[str]:
    try:
        spec = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        spec = None
    folders = [Path(folder) for folder in (spec.submodule_search_locations if spec else None) or ()]
    nvcc, home = shutil.which("nvcc"), os.environ.get("CUDA_HOME", "")
    toolkits = [Path(home)] * bool(home) + ([Path(nvcc).resolve().parents[1]] if nvcc else [])
    for major in MAJORS:
        for folder in folders:
            yield from map(str, sorted(folder.glob(f"*/lib/libnvrtc.so.{major}")))
        for toolkit in toolkits:
            if (path := toolkit / "lib64" / f"libnvrtc.so.{major}").exists():
                yield str(path)
        yield f"libnvrtc.so.{major}"


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

"""Every kernel of kernels/cuda as data; compiles them by NVRTC, and keeps them in the cache."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from msctx.errors import NativeError
from msctx.native import cachedir
from msctx.native.build import first_lines, read_sources
from msctx.native.cachedir import digest
from msctx.shipped import KERNEL_SOURCES

ARCHS = ("sm_80", "sm_90a")
"""What kernels are compiled for: A100, and H100 and H200."""
DTYPES = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}
"""torch's names of the dtypes, and those in the sources."""
LAYOUTS = ("nchw", "channels_last")
WINDOWS = ((3, 1), (3, 2), (5, 1), (5, 2), (7, 1))
"""Square windows and strides with kernels of their own; all else, and all of float64, is computed by the general one."""
OPS = ("fprop", "dgrad", "wgrad")
THREADS = 128
"""Of a block of any kernel."""


@dataclass(frozen=True, slots=True)
class Module:
    """One source compiled in one way, to one cubin for each arch."""

    source: str
    macros: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join([self.source, *(f"-D{macro}" for macro in self.macros)])


def name(op: str, dtype: str, layout: str, window: int = 0, stride: int = 0) -> str:
    """The symbol of an instantiation; *dtype* as torch names it, *window* 0 for the general one."""
    end = f"{window}x{window}_s{stride}" if window else "any"
    return f"depthwise_{op}_{DTYPES[dtype]}_{layout}_{end}"


def finish(dtype: str) -> str:
    """The symbol of wgrad's second pass."""
    return f"depthwise_wgrad_finish_{DTYPES[dtype]}"


def sum_size(dtype: str) -> int:
    """Bytes of a sum: float64 is summed in float64, all else in float32."""
    return 8 if dtype == "float64" else 4


def _kernels() -> dict[str, Module]:
    found: dict[str, Module] = {}
    for op, (dtype, element) in product(OPS, DTYPES.items()):
        general = ("GENERAL_ONLY",) if dtype == "float64" else ()
        module = Module(f"depthwise_{op}.cu", (f"ELEMENT={element}", *general))
        windows = [(0, 0), *(() if general else WINDOWS)]
        found |= {name(op, dtype, layout, *window): module for layout in LAYOUTS for window in windows}
        if op == "wgrad":
            found[finish(dtype)] = module
    return found


KERNELS = _kernels()
"""The symbol of each ``extern "C"`` kernel → its module."""
MODULES = tuple(dict.fromkeys(KERNELS.values()))


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
    tool, files = find_nvrtc(), _read()
    work = [(module, arch) for module in MODULES for arch in archs]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return [*pool.map(lambda each: _compiled(tool, files, *each), work)]


def cubin(module: Module, arch: str) -> bytes:
    """A module that is ready to be loaded.

    Raises:
        NativeError: as build(), or the compiler rejects the source.
    """
    found = _compiled(tool := find_nvrtc(), _read(), module, arch)
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


INSTALL = "install the CUDA toolkit (12 or newer), or `pip install nvidia-cuda-nvrtc`"
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


def find_nvrtc() -> Nvrtc:
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

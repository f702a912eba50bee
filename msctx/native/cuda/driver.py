"""CUDA's driver and its compiler NVRTC, by ctypes."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_int, c_uint, c_void_p
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from msctx.errors import NativeError
from msctx.native.cuda.depthwise_launches import Module

LIBRARY = "libcuda.so.1"
MAJOR, MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR of cuda.h."""
RELAXED = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED."""


class Kernels:
    """The kernels of one cubin, for the context that is current in the thread that makes this.

    Raises:
        NativeError: there is no driver, it refuses the cubin (one for another arch), or no context is current.
    """

    def __init__(self, cubin: bytes) -> None:
        self._driver = _driver()
        context()
        self._module = c_void_p()
        _check(self._driver.cuModuleLoadData(byref(self._module), c_char_p(cubin)), "cuModuleLoadData")

    def function(self, name: str) -> c_void_p:
        """The CUfunction of a kernel."""
        found = c_void_p()
        _check(self._driver.cuModuleGetFunction(byref(found), self._module, name.encode()), f"{name}: cuModuleGetFunction")
        return found


def context() -> int:
    """The context that is current in this thread, as a number that no other has.

    Raises:
        NativeError: no driver, or no context.
    """
    found = c_void_p()
    _check(_driver().cuCtxGetCurrent(byref(found)), "cuCtxGetCurrent")
    if not found.value:
        raise NativeError("no CUDA context is current in this thread; allocate a tensor on the GPU first")
    return found.value


@contextmanager
def relaxed() -> Iterator[None]:
    """Modules may be loaded meanwhile even if this thread records a CUDA graph: nothing of that is recorded."""
    mode = c_int(RELAXED)
    _check(_driver().cuThreadExchangeStreamCaptureMode(byref(mode)), "cuThreadExchangeStreamCaptureMode")
    try:
        yield
    finally:
        _driver().cuThreadExchangeStreamCaptureMode(byref(mode))


def arch() -> str:
    """What kernels are to be compiled for, of the device of the current context: the newest of the manifest that it runs.

    Raises:
        NativeError: no driver, no context, or a device older than all of them.
    """
    driver, device, major, minor = _driver(), c_int(), c_int(), c_int()
    _check(driver.cuCtxGetDevice(byref(device)), "cuCtxGetDevice")
    for found, attribute in ((major, MAJOR), (minor, MINOR)):
        _check(driver.cuDeviceGetAttribute(byref(found), attribute, device), "cuDeviceGetAttribute")
    return arch_of(major.value, minor.value)


def arch_of(major: int, minor: int) -> str:
    """The same of a compute capability. A cubin runs on later devices of its major version; one of sm_90a on 9.0 alone."""
    if (major, minor) == (9, 0):
        return "sm_90a"
    if major == 8:
        return "sm_80"
    raise NativeError(f"no CUDA kernels for compute capability {major}.{minor}: they are compiled for 8.x and 9.0")


@lru_cache(maxsize=1)
def _driver() -> Any:
    try:
        driver = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise NativeError(f"{LIBRARY} cannot be loaded ({error}); CUDA kernels need an NVIDIA GPU and its driver") from None
    driver.cuGetErrorString.argtypes = [c_int, c_void_p]
    driver.cuCtxGetCurrent.argtypes = [c_void_p]
    driver.cuThreadExchangeStreamCaptureMode.argtypes = [c_void_p]
    driver.cuModuleLoadData.argtypes = [c_void_p, c_char_p]
    driver.cuModuleGetFunction.argtypes = [c_void_p, c_void_p, c_char_p]
    driver.cuInit.argtypes = [c_uint]
    _check(driver.cuInit(0), "cuInit", driver)
    return driver


def _check(code: int, what: str, driver: Any = None) -> None:
    if code:
        text = c_char_p()
        (driver or _driver()).cuGetErrorString(code, byref(text))
        raise NativeError(f"{what}: {(text.value or b'unknown error').decode()} (CUresult {code})")


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
        _check_nvrtc(library, create(ctypes.byref(program), files[source], source.encode(), len(headers), contents, names))
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
        _check_nvrtc(library, library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
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
    _check_nvrtc(library, getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    found = ctypes.create_string_buffer(size.value)
    _check_nvrtc(library, getattr(library, f"nvrtcGet{what}")(program, found))
    return found.raw


def _texts(texts: Iterable[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    found = [*texts]
    return (ctypes.c_char_p * len(found))(*found)


def _reason(library: ctypes.CDLL, code: int) -> str:
    return f"NVRTC: {(library.nvrtcGetErrorString(code) or b'').decode(errors='replace')} ({code})"


def _check_nvrtc(library: ctypes.CDLL, code: int) -> None:
    if code:
        raise NativeError(f"{_reason(library, code)}; another release of it may help: {INSTALL}")

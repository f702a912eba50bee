"""CUDA's driver, by ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_int, c_uint, c_void_p
from functools import lru_cache
from typing import Any

from msctx.errors import NativeError

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

"""Our own CUDA kernels on the device far: emulated on the CPU, behind a stand-in for the driver that takes the same calls."""

import ctypes
from pathlib import Path

import emulated
import fake_device

from msctx.native.cuda import compiled_kernels, driver

SOURCE = Path(__file__).with_name("driver_standin.cpp")


def start_driver(*dtypes: str) -> ctypes.CDLL:
    """To be called before a convolution is requested; *dtypes* (f32, f64, f16, bf16) are those that kernels are made for."""
    kernels = emulated.library(emulated.modules(*dtypes))
    driver.LIBRARY = str(fake_device.library(SOURCE))
    compiled_kernels.cubin = lambda module, arch: str(kernels).encode()
    library = ctypes.CDLL(driver.LIBRARY)
    library.driver_log.restype = ctypes.c_char_p
    return library


def driver_log(library: ctypes.CDLL) -> list[str]:
    """What the driver was told to load and to launch since the last call."""
    return library.driver_log().decode().splitlines()

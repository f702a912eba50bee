"""The kernels of kernels/cuda compiled by a C++ compiler and run on the CPU: the same sources, thread by thread. Imports no torch."""

import ctypes
import os
import platform
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_bool, c_int, c_uint, c_void_p
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import kernels_of
import numpy as np
from processes import compiled

from msctx.native.build import find_compiler
from msctx.native.cachedir import digest, obtain
from msctx.native.cuda.compiled_kernels import KERNELS, THREADS, Module
from msctx.native.cuda.depthwise_launches import DepthwiseProblem, Launch, launches, workspace
from msctx.shipped import KERNEL_SOURCES

HERE = Path(__file__).resolve().parent
FLAGS = ("-std=c++17", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-Wall", "-Wextra", "-Wno-unknown-pragmas")
SANITIZED = ("-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer")
GARBAGE = 0x7F  # in all bytes of a result before it is written: a NaN in float16 and bfloat16, 3e38 in float32


def library(modules: list[Module], sanitize: bool = False) -> Path:
    """The emulation with *modules*, in the cache under a hash of all it is made of.

    Raises:
        NativeError: it cannot be compiled.
    """
    tool, kernels = find_compiler(), KERNEL_SOURCES / "cuda"
    files = [*sorted(kernels.glob("*.cu*")), HERE / "emulation.h", HERE / "emulation.cpp"]
    flags = (*FLAGS, *(SANITIZED if sanitize else ("-O2",)), f"-I{kernels}", f"-I{HERE}")
    language = ("-x", "c++", "-include", "emulation.h")
    commands = [(*language, *(f"-D{m}" for m in module.macros), "-c", str(kernels / module.source)) for module in modules]
    commands.append(("-c", str(HERE / "emulation.cpp")))

    def make() -> bytes:
        with TemporaryDirectory() as scratch, ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            objects = [Path(scratch, f"{number}.o") for number in range(len(commands))]
            for _ in pool.map(lambda words, result: compiled(*tool.command, *flags, *words, result=result), commands, objects):
                pass
            return compiled(*tool.command, *flags, "-shared", *objects, result=Path(scratch, "whole.so"))

    key = digest({path.name: path.read_bytes() for path in files}, flags, commands, platform.libc_ver(), str(tool))
    return obtain("emulated", f"{key[:16]}.so", make)


def modules(*dtypes: str) -> list[Module]:
    """The modules of these dtypes, or all."""
    wanted = {f"ELEMENT={name}" for name in dtypes}
    return [m for m in dict.fromkeys(KERNELS.values()) if not wanted or m.macros[0] in wanted]


class Emulation:
    """A library of library(). Tensors are numpy arrays of the bits (uint16 for float16 and bfloat16), as they lie in memory."""

    def __init__(self, path: Path) -> None:
        self._c = ctypes.CDLL(str(path))
        self._c.emulated_depthwise.argtypes = [c_void_p, c_void_p, c_int, c_void_p, c_uint, c_uint, c_bool]
        self._c.emulated_depthwise.restype = c_bool
        self.parameters_size = int(self._c.emulated_parameters_size())

    def has(self, kernel: str) -> bool:
        return hasattr(self._c, kernel)

    def run(
        self, problem: DepthwiseProblem, op: str, tensors: dict[str, Any], general: bool = False, backwards: bool = False
    ) -> None:
        """Write the result of *op* to its own of *tensors* (x, w, y); *backwards*: threads and blocks in the other order."""
        places = dict(tensors)
        with kernels_of.window(general):
            # to the byte, with nothing behind it, so that a sanitizer sees what is read beyond
            places["workspace"] = np.full(workspace(problem, op), GARBAGE, np.uint8)
            for launch in launches(problem, op):
                self.launch(launch, {name: places[name].ctypes.data for name in launch.tensors}, backwards)

    def launch(self, launch: Launch, pointers: dict[str, int], backwards: bool = False) -> None:
        """As the driver does, of tensors in the host's memory."""
        places = (c_void_p * 3)(*(pointers[name] for name in launch.tensors))
        kernel = ctypes.cast(getattr(self._c, launch.kernel), c_void_p)
        parameters, count = ctypes.byref(launch.parameters), len(launch.tensors)
        met = self._c.emulated_depthwise(kernel, places, count, parameters, launch.grid, THREADS, backwards)
        assert met, f"{launch.kernel}: threads of a block ended while others waited for them"

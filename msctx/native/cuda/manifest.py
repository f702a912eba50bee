"""Every kernel of kernels/cuda as data: which module has it, and how many threads run it."""

from __future__ import annotations

from dataclasses import dataclass

ARCHS = ("sm_80", "sm_90a")
"""What kernels are compiled for: A100, and H100 and H200."""
DTYPES = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}
"""torch's names of the dtypes, and those in the sources."""
LAYOUTS = ("nchw", "channels_last")
WINDOWS = ((3, 1), (3, 2), (5, 1), (5, 2), (7, 1))
"""Square windows and strides with kernels of their own; all else, and all of float64, is computed by the general one."""
THREADS = {"fprop": 128, "dgrad": 128, "wgrad": 128}


@dataclass(frozen=True, slots=True)
class Module:
    """One source compiled in one way, to one cubin for each arch."""

    source: str
    macros: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join([self.source, *(f"-D{macro}" for macro in self.macros)])


@dataclass(frozen=True, slots=True)
class Kernel:
    """An ``extern "C"`` symbol of a module, and how many threads a block of it has."""

    name: str
    module: Module
    threads: int


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


def _kernels() -> dict[str, Kernel]:
    found = []
    for op, threads in THREADS.items():
        for dtype, element in DTYPES.items():
            general = ("GENERAL_ONLY",) if dtype == "float64" else ()
            module = Module(f"depthwise_{op}.cu", (f"ELEMENT={element}", *general))
            windows = ((0, 0),) if general else ((0, 0), *WINDOWS)
            for layout in LAYOUTS:
                for window, stride in windows:
                    symbol = name(op, dtype, layout, window, stride)
                    found.append(Kernel(symbol, module, threads))
            if op == "wgrad":
                found.append(Kernel(finish(dtype), module, threads))
    return {kernel.name: kernel for kernel in found}


KERNELS = _kernels()
MODULES = tuple(dict.fromkeys(kernel.module for kernel in KERNELS.values()))

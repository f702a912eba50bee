"""Every kernel of kernels/cuda as data: which module has it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

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

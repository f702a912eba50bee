"""The problems on which kernels are tested and measured, and the kinds of data. Imports neither torch nor msctx."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Case:
    """A convolution of (n, c, *size) with (k, c / groups, *window)."""

    n: int
    c: int
    k: int
    size: tuple[int, ...]
    window: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    dtype: str = "float32"

    @property
    def out(self) -> tuple[int, ...]:
        each = zip(self.size, self.window, self.stride, self.padding, self.dilation, strict=True)
        return tuple((i + 2 * p - d * (w - 1) - 1) // s + 1 for i, w, s, p, d in each)

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Of x, w and y."""
        return (self.n, self.c, *self.size), (self.k, self.c // self.groups, *self.window), (self.n, self.k, *self.out)

    @property
    def is_product(self) -> bool:
        """Whether it is a matmul: a window of 1x1, moved by one."""
        return set(self.window + self.stride) == {1} and not any(self.padding) and self.groups == 1

    def __str__(self) -> str:
        parts = [f"{self.n}x{self.c}x{'x'.join(map(str, self.size))}k{self.k}w{'x'.join(map(str, self.window))}"]
        for letter, values, plain in (("s", self.stride, 1), ("p", self.padding, 0), ("d", self.dilation, 1)):
            parts += [letter + "x".join(map(str, values))] if set(values) != {plain} else []
        parts += [f"g{self.groups}"] if self.groups > 1 else []
        return "-".join(parts + ([self.dtype] if self.dtype != "float32" else []))


def case(
    n: int, c: int, k: int, size: Any, window: Any, stride: Any = 1, padding: Any = 0, dilation: Any = 1, **more: Any
) -> Case:
    """A case; a number stands for the same along each axis of *size*."""
    sizes = size if isinstance(size, tuple) else (size, size)

    def along(value: Any) -> tuple[int, ...]:
        return value if isinstance(value, tuple) else (value,) * len(sizes)

    return Case(n, c, k, sizes, along(window), along(stride), along(padding), along(dilation), **more)


DEPTHWISE = (
    case(2, 19, 19, (13, 30), 3, padding=1, groups=19),
    case(1, 16, 16, (18, 11), 7, padding=3, groups=16),
    case(1, 5, 5, (15, 18), 7, 2, 3, groups=5),
    case(1, 3, 3, (40, 37), 31, padding=15, groups=3),
    case(1, 17, 17, (9, 6), (5, 3), (1, 3), (4, 2), (2, 2), groups=17),
    case(1, 9, 18, (8, 10), 3, (3, 2), 1, groups=9),
    case(9, 4, 4, (3, 5), 9, padding=4, groups=4),
    case(1, 2, 2, (1, 150), (1, 4), (1, 5), (2, 7), (1, 3), groups=2),
)
"""Windows larger than the map, channels that fill no vector or more than one, more than one channel of y for each of x."""

CASES = (
    case(2, 8, 8, 14, 3, padding=1),
    case(1, 3, 16, (23, 19), 7, 2, 3),
    case(2, 16, 24, 7, 1),
    case(1, 5, 7, (13, 17), 5, padding=2),
    case(3, 4, 6, (9, 11), 3, (2, 3), (0, 2)),
    case(1, 6, 4, (16, 15), 3, 1, (4, 5)),
    case(1, 4, 8, (12, 20), 3, 1, 2, 2, groups=2),
    case(2, 12, 12, (10, 9), 3, padding=1, groups=12),
    case(1, 6, 12, 17, 5, 2, 2, groups=6),
    case(1, 33, 40, (6, 37), (1, 5), padding=(0, 2)),
    case(1, 2, 3, (40, 33), (11, 13), padding=(5, 6)),
    case(1, 1, 1, 1, 1),
    case(1, 3, 5, (5, 4), (5, 4)),
    case(0, 4, 4, 8, 3, padding=1),
    case(2, 130, 20, 8, 3, padding=1),
    case(1, 2, 2, (3, 70), 2, (1, 4), 1),
    *DEPTHWISE,
)
"""2-D float32: odd sizes, all parameters, an empty batch."""

OTHER_CASES = (
    *(replace(c, dtype=dtype) for dtype in ("float64", "float16", "bfloat16") for c in (CASES[0], CASES[4], CASES[6])),
    case(2, 4, 6, (29,), 3, 2, 1),
    case(1, 4, 4, (31,), 5, 1, 4, 2, groups=2),
    case(1, 3, 4, (5, 6, 7), 3, 1, 1),
    case(2, 4, 2, (6, 5, 4), (1, 2, 3), (2, 1, 1), groups=2),
    case(1, 2, 3, (5, 4, 6), 2, dtype="float64"),
    case(1, 3, 2, (17,), 3, dtype="bfloat16"),
    *(case(1, 300, 130, (1, 197), 1, dtype=dtype) for dtype in ("float32", "float64", "float16", "bfloat16")),
)
"""What gemm and reference take besides."""

DATA = ("normal", "uniform", "wide", "outlier", "tiny", "denormal")


def data(shape: tuple[int, ...], kind: str, generator: np.random.Generator) -> np.ndarray[Any, Any]:
    """Values of one kind, float64 that float32 can hold."""
    values = generator.standard_normal(shape)
    if kind == "uniform":
        values = generator.random(shape)
    elif kind == "wide":
        values = values * 2.0 ** generator.integers(-20, 21, shape)
    elif kind == "outlier" and values.size:
        values.flat[generator.integers(values.size)] = 1e4
    elif kind == "tiny":
        values = values * 1e-18
    elif kind == "denormal":
        values = values * 1e-20  # products are denormal
        values.flat[::7] = 1e-41
    return values.astype(np.float32).astype(np.float64)


def tensors(c: Case, kind: str = "normal", seed: int = 0) -> tuple[Any, Any, Any]:
    """x, w and y (float64) of a case."""
    generator = np.random.default_rng([seed, DATA.index(kind)])
    x, w, y = c.shapes
    return data(x, kind, generator), data(w, kind, generator), data(y, kind, generator)

"""Convolutions for tests: problems, what they are in float64, and what a context did with them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional as fn

import msctx
from msctx.native.policy_and_choices import Choice
from msctx.options import OPTIONS

DIRECTIONS = ("fprop", "dgrad", "wgrad")
ROWS = [
    (direction, name)
    for direction in DIRECTIONS
    for name in OPTIONS[f"conv_{direction}_algo"].choices
    if name not in ("normal", "performance")
]
"""Every algorithm that can be named, by direction: each of them must be a row of the native table."""
NO_FIXED_ORDER = {("dgrad", "algo_0"), ("wgrad", "algo_0"), ("wgrad", "algo_3")}
FIXED = [row for row in ROWS if row not in NO_FIXED_ORDER]
EVERYTHING = {"gemm", "algo_1", "reference"}
"""The algorithms that take every problem of every floating dtype."""
GEMM = {"conv_fprop_algo": "gemm", "conv_dgrad_algo": "algo_1", "conv_wgrad_algo": "algo_1"}
REFERENCE = {f"conv_{direction}_algo": "reference" for direction in DIRECTIONS}
UNIT = {torch.float32: 2**-24, torch.float64: 2**-53, torch.float16: 2**-11, torch.bfloat16: 2**-8}

each_row = pytest.mark.parametrize(("direction", "name"), ROWS, ids=[f"{d}-{n}" for d, n in ROWS])


def asking(direction: str, name: str, **more: Any) -> "msctx.Context":
    """A context that requests one row."""
    return msctx.context(**{f"conv_{direction}_algo": name}, **more)


class Results(NamedTuple):
    """Of one convolution, forward and backward."""

    fprop: Tensor
    dgrad: Tensor
    wgrad: Tensor
    bias: Tensor | None


@dataclass(frozen=True)
class Conv:
    """A convolution of x with w; ``x`` without its first number is an unbatched input."""

    name: str
    function: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)
    bias: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def run(self) -> Callable[..., Tensor]:
        found: Callable[..., Tensor] = getattr(fn, self.function)
        return found

    @property
    def transposed(self) -> bool:
        return "transpose" in self.function

    def tensors(self, dtype: torch.dtype = torch.float32, seed: int = 0) -> list[Tensor]:
        """x, w, the bias if there is one, and a gradient of the result: last."""
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

        x, w = normal(*self.x), normal(*self.w)
        outputs = self.w[1] * self.options.get("groups", 1) if self.transposed else self.w[0]
        bias = [normal(outputs)] if self.bias else []
        with torch.no_grad():
            shape = self.run(x.to("meta"), w.to("meta"), **self.options).shape
        return [x, w, *bias, normal(*shape)]

    def compute(self, tensors: list[Tensor]) -> Results:
        """Forward and backward; not by ``backward()``, which may copy a gradient into other strides."""
        *leaves, gradient = [t.detach() for t in tensors]
        for leaf in leaves:
            leaf.requires_grad_()
        y = self.run(*leaves, **self.options)
        grads = torch.autograd.grad(y, leaves, gradient)
        return Results(y.detach(), grads[0], grads[1], grads[2] if len(grads) > 2 else None)


def conv(name: str, x: tuple[int, ...], w: tuple[int, ...], bias: bool = False, **options: Any) -> Conv:
    """A problem; the function follows from its shapes, and from ``transposed=True``."""
    kind = "conv_transpose" if options.pop("transposed", False) else "conv"
    return Conv(name, f"{kind}{len(w) - 2}d", x, w, options, bias)


PLANE = conv("plane", (2, 4, 9, 8), (6, 4, 3, 3), True, padding=1)
"""What every row takes."""
PROBLEMS = [
    PLANE,
    conv("no-bias", (2, 4, 9, 8), (6, 4, 3, 3)),
    conv("five", (1, 3, 11, 12), (4, 3, 5, 5), padding=2),
    conv("strided", (2, 3, 11, 10), (4, 3, 3, 3), True, stride=(2, 3), padding=(1, 0)),
    conv("dilated", (1, 4, 12, 13), (4, 4, 3, 3), True, dilation=(2, 1), padding=(2, 1)),
    conv("groups", (2, 6, 8, 7), (9, 2, 3, 3), True, groups=3, padding=1),
    conv("depthwise", (2, 5, 8, 9), (5, 1, 3, 3), True, groups=5, padding=1),
    conv("multiplier", (1, 3, 9, 9), (6, 1, 5, 5), groups=3, padding=2, stride=2),
    conv("pointwise", (2, 7, 6, 5), (3, 7, 1, 1), True),
    conv("line-window", (1, 3, 4, 20), (2, 3, 1, 7), padding=(0, 3)),
    conv("same", (1, 3, 7, 8), (2, 3, 4, 3), padding="same"),
    conv("one-channel", (3, 1, 7, 7), (1, 1, 3, 3), True),
    conv("one-pixel", (2, 3, 1, 1), (4, 3, 3, 3), True, padding=1),
    conv("empty", (0, 4, 8, 8), (6, 4, 3, 3), True, padding=1),
    conv("unbatched", (4, 9, 8), (6, 4, 3, 3), True, padding=1),
    conv("1d", (2, 4, 17), (6, 4, 3), True, padding=1),
    conv("1d-strided", (2, 4, 19), (6, 2, 4), stride=2, dilation=2, groups=2),
    conv("3d", (2, 3, 5, 6, 7), (4, 3, 3, 2, 3), True, padding=1, stride=(1, 2, 1)),
    conv("3d-groups", (1, 4, 5, 4, 6), (4, 2, 2, 3, 2), groups=2),
    conv("transposed", (2, 4, 7, 6), (4, 5, 3, 3), True, padding=1, transposed=True),
    conv(
        "transposed-strided", (2, 4, 5, 6), (4, 3, 3, 3), True, stride=2, padding=1, output_padding=1, groups=2, transposed=True
    ),
    conv("transposed-1d", (2, 3, 9), (3, 4, 4), stride=3, output_padding=2, transposed=True),
    conv("transposed-3d", (1, 2, 4, 3, 4), (2, 3, 2, 3, 2), True, stride=(2, 1, 2), dilation=(1, 2, 1), transposed=True),
    conv("transposed-empty", (0, 2, 4, 4), (2, 3, 3, 3), True, transposed=True),
]


def in_float64(problem: Conv, tensors: Iterable[Tensor]) -> Results:
    """What is right; to be called outside contexts."""
    return problem.compute([t.double() for t in tensors])


def largest(values: Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0


def assert_near(got: Tensor, right: Tensor, error: float, what: str = "") -> None:
    """Within *error* in units of the largest result, and the rounding of a bias that was added in the dtype of the result."""
    assert got.shape == right.shape
    allowed = (error + UNIT[got.dtype]) * largest(right)
    assert largest(got.double() - right) <= allowed, (
        f"{what}: off by {largest(got.double() - right):.3g}, allowed {allowed:.3g}"
    )


def row_of(choices: Iterable[Choice], direction: str) -> Choice:
    """The one row of a direction."""
    (found,) = [row for row in choices if row.direction == direction]
    return found


def bits(results: Iterable[Tensor | None]) -> list[bytes]:
    """For comparisons to the last bit."""
    return [t.contiguous().view(-1).view(torch.uint8).numpy().tobytes() for t in results if t is not None]


def warned(found: pytest.WarningsRecorder) -> list[str]:
    """The warnings of msctx."""
    return [str(w.message) for w in found if issubclass(w.category, msctx.MsctxWarning)]

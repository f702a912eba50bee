"""Every row of the table runs through torch: values, strides and gradients of each kind of convolution."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
from convs import (
    EVERYTHING,
    GEMM,
    PLANE,
    PROBLEMS,
    REFERENCE,
    ROWS,
    UNIT,
    asking,
    assert_near,
    bits,
    conv,
    each_row,
    in_float64,
    largest,
    row_of,
)
from torch import Tensor
from torch.nn import functional as fn

import msctx

pytestmark = pytest.mark.usefixtures("one_thread")


@each_row
def test_each_algorithm_that_can_be_named_is_a_row_that_runs(direction: str, name: str) -> None:
    tensors = PLANE.tensors()
    with asking(direction, name, fallback="error") as ctx:
        PLANE.compute(tensors)
    (row,) = ctx.choices()
    assert (row.direction, row.requested, row.ran, row.provider, row.calls) == (direction, name, name, "msctx", 1)
    assert 0 < row.error <= 3e-5
    assert row.math in ({"float64"} if name == "reference" else {"strict", "fp32-grade"})
    with asking(direction, name, fallback="error", allow_fp32_emulation=False) as ctx:
        PLANE.compute(tensors)
    assert {row.math for row in ctx.choices()} == {"float64" if name == "reference" else "strict"}


def test_products_in_float32_are_asked_for_even_where_tf32_is_allowed() -> None:
    tensors = PLANE.tensors()
    for emulates in (False, True):
        with asking("fprop", "implicit_gemm", conv_allow_tf32=True, allow_fp32_emulation=emulates) as ctx:
            PLANE.compute(tensors)
        assert ctx.choices()[0].math in ({"tf32", "strict"} if emulates else {"strict"})


@each_row
def test_values_and_strides(direction: str, name: str) -> None:
    for problem in PROBLEMS:
        tensors = problem.tensors()
        right, own = in_float64(problem, tensors), problem.compute(tensors)
        with asking(direction, name, fallback="silent") as ctx:
            got = problem.compute(tensors)
        row = row_of(ctx.choices(), direction)
        refused = any(reason.startswith(f"{name}: ") for reason in row.reasons)
        assert (row.ran == name) != refused, problem
        assert row.ran == name or name not in EVERYTHING, problem
        for kind, exact, ours, torchs in zip(right._fields, right, got, own, strict=True):
            if exact is not None:
                assert_near(ours, exact, row.error if kind == direction and row.error else 2e-5, f"{problem} {kind}")
                assert (ours.stride(), ours.dtype) == (torchs.stride(), torchs.dtype), f"{problem} {kind}"


def sliced(t: Tensor) -> Tensor:
    """The same values, every second element of a larger tensor."""
    wide = t.new_zeros(*t.shape[:-1], 2 * t.shape[-1])
    wide[..., ::2] = t
    return wide[..., ::2]


def swapped(t: Tensor) -> Tensor:
    """The same values, the last two axes the other way round in memory."""
    return t.transpose(-1, -2).contiguous().transpose(-1, -2)


def last(t: Tensor) -> Tensor:
    if t.dim() == 3:
        return last(t.unsqueeze(2)).squeeze(2)
    return t.contiguous(memory_format={4: torch.channels_last, 5: torch.channels_last_3d}[t.dim()])


LAYOUTS: dict[str, Callable[[list[Tensor]], list[Tensor]]] = {
    "channels-last": lambda t: [last(t[0]), *t[1:]],
    "all-channels-last": lambda t: [last(t[0]), last(t[1]), *t[2:-1], last(t[-1])],
    "weight-channels-last": lambda t: [t[0], last(t[1]), *t[2:]],
    "gradient-channels-last": lambda t: [*t[:-1], last(t[-1])],
    "sliced": lambda t: [sliced(t[0]), sliced(t[1]), *t[2:-1], sliced(t[-1])],
    "swapped": lambda t: [swapped(t[0]), swapped(t[1]), *t[2:-1], swapped(t[-1])],
    "expanded-gradient": lambda t: [*t[:-1], t[-1].flatten()[:1].view([1] * t[-1].dim()).expand(t[-1].shape)],
    "offset": lambda t: [torch.cat([t[0].flatten()[:1], t[0].flatten()])[1:].view(t[0].shape), *t[1:]],
}
NAMED = "plane, groups, one-channel, pointwise, 1d, 1d-strided, 3d, transposed, transposed-1d, transposed-3d"
WITH_LAYOUTS = [p for p in PROBLEMS if p.name in NAMED.split(", ")] + [
    conv("one-row", (2, 4, 1, 6), (5, 4, 1, 3), True),
    conv("one-by-one", (2, 1, 5, 5), (4, 1, 1, 1)),
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str) -> None:
    for problem, options in product(
        WITH_LAYOUTS, (GEMM, REFERENCE, {**GEMM, "conv_fprop_algo": "winograd", "conv_dgrad_algo": "fft"})
    ):
        tensors = LAYOUTS[layout](problem.tensors())
        right, own = in_float64(problem, tensors), problem.compute(tensors)
        with msctx.context(**options, fallback="silent"):
            got = problem.compute(tensors)
        for kind, exact, ours, torchs in zip(right._fields, right, got, own, strict=True):
            if exact is not None:
                assert_near(ours, exact, 2e-5, f"{problem} {options} {kind}")
                assert ours.stride() == torchs.stride(), f"{problem} {options} {kind}"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", [GEMM, REFERENCE], ids=["gemm", "reference"])
def test_other_dtypes(options: dict[str, str], dtype: torch.dtype) -> None:
    for problem in PROBLEMS:
        tensors = problem.tensors(dtype)
        right, own = in_float64(problem, tensors), problem.compute(tensors)
        with msctx.context(**options, fallback="error") as ctx:
            got = problem.compute(tensors)
        for row in ctx.choices():
            assert (row.ran, row.problem.dtype) == (row.requested, str(dtype).removeprefix("torch.")), problem
            assert row.error >= UNIT[dtype], problem
        for kind, exact, ours, torchs in zip(right._fields, right, got, own, strict=True):
            if exact is not None:
                assert_near(ours, exact, 1e-14 if dtype == torch.float64 else UNIT[dtype], f"{problem} {kind}")
                assert ours.stride() == torchs.stride(), f"{problem} {kind}"


# --- which gradients are computed ------------------------------------------------------------------------------------


MASKS = [(x, w, b) for x in (True, False) for w in (True, False) for b in (True, False) if x or w or b]


@pytest.mark.parametrize("options", [GEMM, {"conv_fprop_algo": "gemm"}, {"conv_wgrad_algo": "fft"}], ids=str)
def test_only_the_gradients_that_are_needed(options: dict[str, str]) -> None:
    for mask in MASKS:
        *leaves, gradient = tensors = PLANE.tensors()
        right = in_float64(PLANE, tensors)
        for leaf, needed in zip(leaves, mask, strict=True):
            leaf.requires_grad_(needed)
        with msctx.context(**options, fallback="error") as ctx:
            fn.conv2d(*leaves, padding=1).backward(gradient)
        requested = {"fprop", *(d for d, needed in zip(("dgrad", "wgrad"), mask, strict=False) if needed)}
        assert {row.direction for row in ctx.choices()} == {d for d in requested if f"conv_{d}_algo" in options}, mask
        for leaf, needed, exact in zip(leaves, mask, right[1:], strict=True):
            assert (leaf.grad is not None) == needed, mask
            if needed:
                assert_near(leaf.grad, exact, 2e-5, str(mask))


@pytest.mark.parametrize("name", [name for direction, name in ROWS if direction == "fprop"])
@pytest.mark.parametrize("parts", [True, False])
def test_a_bias_is_added_as_if_afterwards(name: str, parts: bool) -> None:
    images, w, bias = torch.randn(2, 20, 13, 14), torch.randn(18, 20, 3, 3), torch.randn(18, 2)[:, 0]
    turned = torch.randn(20, 18, 3, 3)
    for layout in (torch.contiguous_format, torch.channels_last):
        x = images.contiguous(memory_format=layout)
        with asking("fprop", name, fallback="silent", allow_fp32_emulation=parts):
            found, plain = fn.conv2d(x, w, bias, padding=1), fn.conv2d(x, w, padding=1)
            assert torch.equal(found, plain + bias[:, None, None])
            found, plain = fn.conv_transpose2d(x, turned, bias), fn.conv_transpose2d(x, turned)
            assert torch.equal(found, plain + bias[:, None, None])


# --- values that are not finite --------------------------------------------------------------------------------------


@each_row
def test_what_is_not_finite_appears_as_in_float64(direction: str, name: str) -> None:
    problem = conv("nonfinite", (2, 3, 12, 11), (4, 3, 3, 3), padding=1)
    for value in (float("inf"), float("-inf"), float("nan")):
        tensors = problem.tensors()
        for t in (tensors[0], tensors[-1]):
            t[0, 1, 2, 3] = value
        right = in_float64(problem, tensors)
        with asking(direction, name, fallback="error"):
            got = problem.compute(tensors)
        exact, ours = right._asdict()[direction], got._asdict()[direction].double()
        assert torch.equal(ours.isnan(), exact.isnan()), value
        assert torch.equal(ours.isinf() * ours.sign().nan_to_num(), exact.isinf() * exact.sign().nan_to_num()), value
        fine = exact.isfinite()
        assert largest(ours[fine] - exact[fine]) <= 2e-5 * largest(exact[fine]), value


@each_row
def test_the_same_call_gives_the_same_bits_and_changes_nothing_of_its_operands(direction: str, name: str) -> None:
    tensors = PLANE.tensors()
    before = bits(tensors)
    with asking(direction, name, fallback="error"):
        first, second = PLANE.compute(tensors), PLANE.compute(tensors)
    assert bits(tensors) == before
    if name not in ("algo_0", "algo_3"):
        assert bits(first) == bits(second)

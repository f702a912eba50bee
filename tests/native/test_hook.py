"""Every row of the table runs through torch: values, strides and gradients of each kind of convolution."""

from typing import Any

import pytest
import torch
from convs import (
    EVERYTHING,
    GEMM,
    PLANE,
    PROBLEMS,
    REFERENCE,
    UNIT,
    Conv,
    Results,
    asking,
    assert_near,
    each_row,
    in_float64,
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


FORMATS = ("contiguous", "channels_last", "every second", "swapped axes", "offset", "expanded")


def laid_out(t: Tensor, form: str) -> Tensor:
    """The same values in another place in memory; expanded, one value of them everywhere."""
    match form:
        case "channels_last":
            return t.movedim(1, -1).contiguous().movedim(-1, 1)
        case "every second":
            wide = t.new_zeros(*t.shape[:-1], 2 * t.shape[-1])
            wide[..., ::2] = t
            return wide[..., ::2]
        case "swapped axes":
            return t.transpose(-1, -2).contiguous().transpose(-1, -2)
        case "offset":
            return torch.cat([t.new_zeros(3), t.flatten()])[3:].view(t.shape)
        case "expanded" if t.numel():
            return t.flatten()[:1].view([1] * t.dim()).expand(t.shape)
    return t


def steps(t: Tensor | None) -> list[int]:
    """The strides of axes that have any."""
    return [] if t is None or not t.numel() else [step for step, size in zip(t.stride(), t.shape, strict=True) if size > 1]


def assert_alike(problem: Conv, right: Results, got: Results, own: Results, errors: dict[str, float]) -> None:
    """Near what is right, in torch's strides and dtype."""
    for kind, exact, ours, torchs in zip(right._fields, right, got, own, strict=True):
        if exact is not None:
            assert_near(ours, exact, errors[kind], f"{problem} {kind}")
            assert (steps(ours), ours.dtype) == (steps(torchs), torchs.dtype), f"{problem} {kind}"


@each_row
def test_values_and_strides(direction: str, name: str) -> None:
    """Each problem with its tensors laid out in one of several ways."""
    for number, problem in enumerate(PROBLEMS):
        x, w, *bias, gradient = problem.tensors()
        if x.numel():
            forms = (FORMATS[n % len(FORMATS)] for n in (number, number // 2, number + 3))
            x, w, gradient = map(laid_out, (x, w, gradient), forms)
        tensors = [x, w, *bias, gradient]
        right, own = in_float64(problem, tensors), problem.compute(tensors)
        with asking(direction, name, fallback="silent") as ctx:
            got = problem.compute(tensors)
        row = row_of(ctx.choices(), direction)
        refused = any(reason.startswith(f"{name}: ") for reason in row.reasons)
        assert (row.ran == name) != refused, problem
        assert row.ran == name or name not in EVERYTHING, problem
        errors = {kind: row.error if kind == direction and row.error else 2e-5 for kind in right._fields}
        assert_alike(problem, right, got, own, errors)


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
        assert_alike(problem, right, got, own, dict.fromkeys(right._fields, 1e-14 if dtype == torch.float64 else UNIT[dtype]))


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


# --- windows of one position --------------------------------------------------------------------------------------------


PRODUCTS = (
    {"thread_invariant": True},
    {"batch_invariant": True},
    {"conv_fprop_algo": "implicit_gemm", "conv_dgrad_algo": "algo_1"},
)
CALLS = {
    (transposed, axes): getattr(fn, f"conv_transpose{axes}d" if transposed else f"conv{axes}d")
    for transposed in (False, True)
    for axes in (1, 2, 3)
}


LIKE_PRODUCTS: tuple[tuple[tuple[int, ...], dict[str, Any]], ...] = (
    ((9,), {"padding": 1, "output_padding": 2, "dilation": 3}),
    ((3, 4), {"padding": (0, 1), "output_padding": 1, "dilation": 2}),
)
"""Transposed ones whose results have as many positions as their inputs have, in other places."""


@pytest.mark.parametrize("options", PRODUCTS, ids=lambda options: next(iter(options)))
@pytest.mark.parametrize(("size", "how"), LIKE_PRODUCTS, ids=["1d", "2d"])
def test_as_many_positions_are_not_the_same_positions(
    options: dict[str, Any], size: tuple[int, ...], how: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    call = CALLS[True, len(size)]
    x, w = torch.randn(2, 3, *size), torch.randn(3, 4, *[1] * len(size))

    def results(dtype: torch.dtype) -> list[torch.Tensor]:
        own = [t.to(dtype).requires_grad_() for t in (x, w)]
        y = call(*own, **how)
        return [y.detach(), *torch.autograd.grad(y.square().sum(), own)]

    with msctx.context(**options):
        found = results(torch.float32)
    truth = results(torch.float64)
    assert truth[0][0, 0].numel() == x[0, 0].numel()
    for one, right in zip(found, truth, strict=True):
        torch.testing.assert_close(one, right.float(), rtol=1e-4, atol=1e-4)

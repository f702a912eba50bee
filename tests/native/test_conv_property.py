"""Any convolution through PyTorch, under any algorithm, in any memory format: right, in torch's strides, with the same bits again."""

import pytest
import torch
from convs import ROWS, Conv, assert_near, bits, conv, in_float64, quiet, row_of
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import msctx

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


@st.composite
def problems(draw: st.DrawFn) -> Conv:
    axes = draw(st.sampled_from([2, 2, 2, 1, 3]))

    def along(least: int, most: int) -> tuple[int, ...]:
        return draw(st.tuples(*[st.integers(least, most)] * axes))

    groups, batch, bias = draw(st.sampled_from([1, 1, 2, 4])), draw(st.integers(0, 3)), draw(st.booleans())
    each, results = draw(st.integers(1, 20)), draw(st.integers(1, 20))
    size, window = along(1, 8 if axes == 3 else 24), along(1, 3 if axes == 3 else 5)
    stride, dilation, padding = along(1, 3), along(1, 2), along(0, 4)
    how = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    shape = (batch, groups * each, *size)
    if draw(st.booleans()):
        reach = [
            (s - 1) * t - 2 * p + d * (w - 1) + 1 for s, t, p, d, w in zip(size, stride, padding, dilation, window, strict=True)
        ]
        assume(min(reach) > 0)
        return conv("drawn", shape, (groups * each, results, *window), bias, transposed=True, **how)
    assume(all(s + 2 * p >= d * (w - 1) + 1 for s, p, d, w in zip(size, padding, dilation, window, strict=True)))
    return conv("drawn", shape, (groups * results, each, *window), bias, **how)


def steps(t: Tensor | None) -> list[int]:
    """The strides of axes that have any."""
    return [] if t is None or not t.numel() else [step for step, size in zip(t.stride(), t.shape, strict=True) if size > 1]


@quiet
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("examples", [40, pytest.param(200, marks=pytest.mark.full)])
def test_any_convolution(examples: int) -> None:
    drawn = given(problems(), st.sampled_from(ROWS), st.lists(st.sampled_from(FORMATS), min_size=3, max_size=3), st.booleans())
    settings(max_examples=examples, suppress_health_check=[HealthCheck.too_slow])(drawn(is_right))()


def is_right(problem: Conv, requested: tuple[str, str], forms: list[str], tf32: bool) -> None:
    direction, name = requested
    x, w, *bias, gradient = problem.tensors()
    x, w, gradient = (laid_out(t, form) for t, form in zip((x, w, gradient), forms, strict=True))
    tensors = [x, w, *bias, gradient]
    right, own = in_float64(problem, tensors), problem.compute(tensors)
    options = {f"conv_{direction}_algo": name, "conv_allow_tf32": tf32, "fallback": "silent"}
    with msctx.context(**options) as ctx:
        got, again = problem.compute(tensors), problem.compute(tensors)
    row = row_of(ctx.choices(), direction)
    exact, ours = getattr(right, direction), getattr(got, direction)
    assert not x.numel() or [*map(steps, got)] == [*map(steps, own)]
    # a sum of few products may nearly cancel: the bound is for results of the usual size
    factors = {"fprop": (x, w), "dgrad": (gradient, w), "wgrad": (x, gradient)}[direction]
    usual = float(factors[0].abs().max() * factors[1].abs().max()) if min(t.numel() for t in factors) else 0.0
    if float(exact.abs().max() if exact.numel() else 0.0) >= usual / 8:
        assert_near(ours, exact, max(row.error or 0.0, 2e-5), str(row))
    if row.ran not in ("algo_0", "algo_3", "torch"):
        assert bits([ours]) == bits([getattr(again, direction)])

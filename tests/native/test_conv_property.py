"""Any convolution through PyTorch, under any algorithm, in any memory format: right, and the same bits when it is requested again."""

import pytest
import torch
from convs import ROWS, Conv, assert_near, bits, conv, in_float64, quiet, row_of
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import msctx

FORMATS = ("contiguous", "channels_last", "every second", "swapped axes", "offset")


def laid_out(t: Tensor, form: str) -> Tensor:
    """The same values in another place in memory."""
    if form == "channels_last":
        return t.contiguous(memory_format=torch.channels_last)
    if form == "every second":
        wide = t.new_zeros(*t.shape[:-1], 2 * t.shape[-1])
        wide[..., ::2] = t
        return wide[..., ::2]
    if form == "swapped axes":
        return t.transpose(-1, -2).contiguous().transpose(-1, -2)
    if form == "offset":
        return torch.cat([t.new_zeros(3), t.flatten()])[3:].view(t.shape)
    return t


@st.composite
def problems(draw: st.DrawFn) -> Conv:
    groups = draw(st.sampled_from([1, 1, 2, 4]))
    each, results = draw(st.integers(1, 20)), draw(st.integers(1, 20))
    window = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    stride, dilation = draw(st.tuples(*[st.integers(1, 3)] * 2)), draw(st.tuples(*[st.integers(1, 2)] * 2))
    padding = draw(st.tuples(st.integers(0, 4), st.integers(0, 4)))
    size, batch = draw(st.tuples(st.integers(1, 24), st.integers(1, 24))), draw(st.integers(0, 3))
    how = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    if draw(st.booleans()):
        reach = [
            (s - 1) * t - 2 * p + d * (w - 1) + 1 for s, t, p, d, w in zip(size, stride, padding, dilation, window, strict=True)
        ]
        assume(min(reach) > 0)
        return conv(
            "drawn",
            (batch, groups * each, *size),
            (groups * each, results, *window),
            draw(st.booleans()),
            transposed=True,
            **how,
        )
    assume(all(s + 2 * p >= d * (w - 1) + 1 for s, p, d, w in zip(size, padding, dilation, window, strict=True)))
    return conv("drawn", (batch, groups * each, *size), (groups * results, each, *window), draw(st.booleans()), **how)


@quiet
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("examples", [25, pytest.param(100, marks=pytest.mark.full)])
def test_any_convolution(examples: int) -> None:
    drawn = given(problems(), st.sampled_from(ROWS), st.lists(st.sampled_from(FORMATS), min_size=3, max_size=3), st.booleans())
    settings(max_examples=examples, suppress_health_check=[HealthCheck.too_slow])(drawn(is_right))()


def is_right(problem: Conv, requested: tuple[str, str], forms: list[str], tf32: bool) -> None:
    direction, name = requested
    tensors = problem.tensors()
    right = in_float64(problem, tensors)
    x, w, *bias, gradient = tensors
    given_ = [laid_out(x, forms[0]), laid_out(w, forms[1]), *bias, laid_out(gradient, forms[2])]
    options = {f"conv_{direction}_algo": name, "conv_allow_tf32": tf32, "fallback": "silent"}
    with msctx.context(**options) as ctx:
        got, again = problem.compute(given_), problem.compute(given_)
    row = row_of(ctx.choices(), direction)
    exact, ours = getattr(right, direction), getattr(got, direction)
    # a sum of few products may nearly cancel: the bound is for results of the usual size
    factors = {"fprop": (x, w), "dgrad": (gradient, w), "wgrad": (x, gradient)}[direction]
    usual = float(factors[0].abs().max() * factors[1].abs().max()) if min(t.numel() for t in factors) else 0.0
    if float(exact.abs().max() if exact.numel() else 0.0) >= usual / 8:
        assert_near(ours, exact, max(row.error or 0.0, 2e-5), str(row))
    if row.ran not in ("algo_0", "algo_3", "torch"):
        assert bits([ours]) == bits([getattr(again, direction)])

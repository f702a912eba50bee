"""Operators that reach cuDNN without aten::convolution, and torch's own kernel of the backward pass."""

import textwrap
from collections.abc import Callable

import pytest

GIVEN = """
x, w = on_far(torch.randn(2, 4, 7, 9), torch.randn(4, 4, 3, 3))
aten = torch.ops.aten
geometry = [1, 1], [1, 1], [1, 1]
flags = 1, False, False, True
"""

ROUTES = {
    "cudnn_convolution_relu": ("aten.cudnn_convolution_relu(x, w, None, *geometry, 1)", "relu"),
}
"""By operator: a call, and what of a convolution it is. The first is no part of a convolution."""


@pytest.mark.full
@pytest.mark.parametrize("operator", ROUTES)
def test_it_is_counted_and_refused(asking: Callable[[str], str], operator: str) -> None:
    call, then = ROUTES[operator]
    code = f"""
    def call():
        return {call}
    function = torch.conv_transpose2d if "transpose" in "{operator}" else torch.conv2d
    right = getattr(function(x.cpu(), w.cpu(), padding=1), "{then}")()

    ask(conv_fprop_algo="gemm")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            torch.testing.assert_close(call().cpu(), right)
    (message,) = (str(one.message) for one in caught if "conv_fprop_algo" in str(one.message))
    assert "2x4x7x9 * 4x4x3x3" in message and "aten::{operator} is a separate operator" in message, message
    (row,) = rows()
    assert (row.requested, row.ran, row.provider, row.calls) == ("gemm", "torch", "torch", 2), row

    ask(conv_fprop_algo="gemm", fallback="error")
    assert "aten::{operator}" in refused(call)
    ask(conv_wgrad_algo="algo_1", fallback="error")
    before = since()
    call()
    assert not rows(before), "nothing is requested forward"
    ask()
    torch.testing.assert_close(call().cpu(), right)
    """
    asking(GIVEN + textwrap.dedent(code))


def test_inside_torchs_own_path_it_is_part_of_that(asking: Callable[[str], str]) -> None:
    """torch's own convolution calls cudnn_convolution: one call, one row, and under fallback="error" nobody is refused twice."""
    code = """
    def through_cudnn(x, w, b, stride, padding, dilation, transposed, output_padding, groups):
        return aten.cudnn_convolution(x, w, padding, stride, dilation, groups, *flags[1:])

    standin._torchs_own.impl("convolution", through_cudnn, "PrivateUse1", allow_override=True)
    wide = torch.zeros(4, dtype=torch.float64).to(FAR)
    ask(conv_fprop_algo="gemm", fallback="silent")
    aten.convolution(x, w, wide, *geometry, False, [0, 0], 1)
    assert own_calls.count("direct") == 1
    (row,) = rows()
    assert (row.ran, row.calls, row.reasons) == ("torch", 1, ("its bias has another type or shape",)), row
    ask()
    torch.conv2d(x, w)
    assert own_calls.count("direct") == 2
    """
    asking(GIVEN + textwrap.dedent(code))

"""Routes that reach oneDNN or a quantised kernel without aten::convolution: counted, told and refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from convs import asking
from torch import nn

import msctx

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]
X = torch.randn(2, 3, 9, 8)


def assert_counted_and_refused(call: Callable[[], torch.Tensor], operator: str) -> None:
    """*call* runs torch's own way inside, is told of, and raises where a fallback is an error."""
    own = call()
    with asking("fprop", "gemm") as ctx:
        with pytest.warns(msctx.MsctxWarning, match=operator):
            inside = call()
        call()
    assert torch.equal(inside, own)
    (row,) = ctx.choices()
    assert (row.asked, row.ran, row.provider, row.calls) == ("gemm", "torch", "torch", 2)
    assert any(operator in reason for reason in row.reasons)
    assert row.problem.input
    assert str(ctx.choices())
    with asking("fprop", "gemm", fallback="error") as ctx, pytest.raises(RuntimeError, match=operator) as raised:
        call()
    assert "stride ," not in str(raised.value), "what is not known is left out"
    assert not ctx.choices()
    with asking("fprop", "gemm", fallback="silent"):
        assert torch.equal(call(), own)
    with asking("fprop", "normal", fallback="error") as ctx:
        call()
    assert [row.ran for row in ctx.choices()] == ["torch"]
    with asking("wgrad", "algo_1", fallback="error") as ctx:
        call()
    assert not ctx.choices(), "nothing is asked for forward"
    assert torch.equal(call(), own)


def test_a_model_converted_to_mkldnn() -> None:
    from torch.utils import mkldnn

    model = mkldnn.to_mkldnn(nn.Sequential(nn.Conv2d(3, 4, 3)).eval())
    with torch.no_grad():
        assert_counted_and_refused(lambda: model(X.to_mkldnn()).to_dense(), "aten::mkldnn_convolution")
        x, w = X.to_mkldnn(), torch.randn(4, 3, 3, 3).to_mkldnn()
        assert_counted_and_refused(lambda: torch.conv2d(x, w).to_dense(), "aten::convolution")


def test_the_fused_operator_of_frozen_code() -> None:
    weight = torch.randn(4, 3, 3, 3)
    arguments = ([0, 0], [1, 1], [1, 1], 1, "relu", [], "")
    operator = torch.ops.mkldnn._convolution_pointwise.default
    assert_counted_and_refused(lambda: operator(X, weight, None, *arguments), "mkldnn::_convolution_pointwise")


def test_conv_tbc() -> None:
    x, w, b = torch.randn(7, 2, 3), torch.randn(3, 3, 4), torch.randn(4)
    assert_counted_and_refused(lambda: torch.conv_tbc(x, w, b), "aten::conv_tbc")


def test_a_quantised_convolution() -> None:
    engines = [engine for engine in torch.backends.quantized.supported_engines if engine != "none"]
    if not engines:
        pytest.skip("this torch has no quantised engine")
    found = torch.backends.quantized.engine
    torch.backends.quantized.engine = engines[-1]
    try:
        from torch.ao.nn.quantized import functional as quantised

        x = torch.quantize_per_tensor(X, 0.1, 0, torch.quint8)
        w = torch.quantize_per_tensor(torch.randn(4, 3, 3, 3), 0.1, 0, torch.qint8)
        assert_counted_and_refused(
            lambda: quantised.conv2d(x, w, torch.zeros(4), scale=0.1, zero_point=0).dequantize(), "quantized::conv2d"
        )
    finally:
        torch.backends.quantized.engine = found


def test_a_sparse_input_stays_torchs() -> None:
    w = torch.randn(4, 3, 3, 3)

    def outcome() -> str:
        try:
            return str(torch.conv2d(X.to_sparse(), w).shape)
        except RuntimeError as error:  # NotImplementedError is one
            return str(error)

    own = outcome()
    with asking("fprop", "gemm", fallback="silent"):
        assert outcome() == own

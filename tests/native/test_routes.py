"""Routes that reach oneDNN or a quantised kernel without aten::convolution: counted, reported and refused."""

import re
from collections.abc import Callable

import pytest
import torch
from convs import asking
from torch import nn

import msctx

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]
X = torch.randn(2, 3, 9, 8)


def assert_counted_and_refused(call: Callable[[], torch.Tensor], operator: str) -> None:
    """*call* runs torch's own way inside, is reported, and raises where a fallback is an error."""
    own = call()
    with asking("fprop", "gemm") as ctx:
        with pytest.warns(msctx.MsctxWarning, match=operator):
            inside = call()
        call()
    assert torch.equal(inside, own)
    (row,) = ctx.choices()
    assert (row.requested, row.ran, row.provider, row.calls) == ("gemm", "torch", "torch", 2)
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
    assert not ctx.choices(), "nothing is requested forward"
    assert torch.equal(call(), own)


def test_converted_frozen_and_quantised_models() -> None:
    from torch.ao.nn.quantized import functional as quantised
    from torch.utils import mkldnn

    x, weight = X.to_mkldnn(), torch.randn(4, 3, 3, 3)
    model, w = mkldnn.to_mkldnn(nn.Sequential(nn.Conv2d(3, 4, 3)).eval()), weight.to_mkldnn()
    with torch.no_grad():
        assert_counted_and_refused(lambda: model(x).to_dense(), "aten::mkldnn_convolution")
        assert_counted_and_refused(lambda: torch.conv2d(x, w).to_dense(), "aten::convolution")
    arguments = ([0, 0], [1, 1], [1, 1], 1, "relu", [], "")  # as frozen code has them
    operator = torch.ops.mkldnn._convolution_pointwise.default
    assert_counted_and_refused(lambda: operator(X, weight, None, *arguments), "mkldnn::_convolution_pointwise")
    found = torch.backends.quantized.engine
    torch.backends.quantized.engine = torch.backends.quantized.supported_engines[-1]
    try:
        q, qw = torch.quantize_per_tensor(X, 0.1, 0, torch.quint8), torch.quantize_per_tensor(weight, 0.1, 0, torch.qint8)
        assert_counted_and_refused(
            lambda: quantised.conv2d(q, qw, torch.zeros(4), scale=0.1, zero_point=0).dequantize(),
            "quantized::conv2d is not a float convolution",
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


def test_inside_torchs_own_path_they_are_part_of_that() -> None:
    """torch's own convolution calls them: one call, one row, in each direction."""
    problems = [
        (X.double(), torch.randn(4, 3, 3, 3, dtype=torch.float64), {}),
        (X, torch.randn(4, 3, 3, 3), {}),
        (X.double(), torch.randn(4, 3, 3, 3, dtype=torch.float64), {"dilation": 2}),
        (X.double()[:, :, None], torch.randn(4, 3, 1, 3, 3, dtype=torch.float64), {}),
    ]
    for x, w, options in problems:
        function = torch.conv2d if w.ndim == 4 else torch.conv3d
        requested = msctx.context(conv_fprop_algo="normal", conv_dgrad_algo="normal", conv_wgrad_algo="normal")
        with requested as ctx, torch.backends.mkldnn.flags(enabled=False):
            function(x.clone().requires_grad_(), w.requires_grad_(), **options).sum().backward()
        assert sorted((row.direction, row.calls) for row in ctx.choices()) == [("dgrad", 1), ("fprop", 1), ("wgrad", 1)]
        assert not any("separate operator" in reason for row in ctx.choices() for reason in row.reasons)


A, B, ONE = torch.randn(32, 32), torch.randn(32, 32), torch.tensor(1.0)


def quantised(module: nn.Module, x: torch.Tensor) -> Callable[[], object]:
    return lambda: torch.ao.quantization.quantize_dynamic(nn.Sequential(module), {type(module)})(x)


PRODUCTS: dict[str, Callable[[], object]] = {
    "aten::mm": lambda: A.to_sparse() @ B,
    "aten::addmm": lambda: torch.sparse.mm(A.to_sparse_csc(), B),
    "aten::mv": lambda: A.to_sparse().mv(B[0]),
    "aten::bmm": lambda: torch.bmm(A[None].to_sparse(), B[None]),
    "aten::sparse_sampled_addmm": lambda: torch.sparse.sampled_addmm(A.to_sparse_csr(), A, B),
    "aten::_sparse_mm_reduce_impl": lambda: torch.sparse.mm(A.to_sparse_csr(), B, "mean"),
    "no complex matmuls": lambda: A.cfloat() @ B.cfloat(),
    "aten::_int_mm": lambda: torch._int_mm(A.char(), B.char()),
    "aten::_scaled_mm": lambda: torch._scaled_mm(A.to(torch.float8_e4m3fn), B.to(torch.float8_e4m3fn).t(), ONE, ONE),
    "aten::_weight_int8pack_mm": lambda: torch._weight_int8pack_mm(A.bfloat16(), B.char(), B[0].bfloat16()),
    "aten::_weight_int4pack_mm_for_cpu": lambda: torch._weight_int4pack_mm_for_cpu(
        A, torch._convert_weight_to_int4pack_for_cpu(torch.ones(32, 32, dtype=torch.int32), 1), 32, torch.ones(1, 32, 2)
    ),
    "aten::fbgemm_linear_fp16_weight": lambda: torch.fbgemm_linear_fp16_weight(A, torch.fbgemm_pack_gemm_matrix_fp16(B), B[0]),
    "quantized::linear_dynamic_fp16_unpacked_weight": lambda: torch.ops.quantized.linear_dynamic_fp16_unpacked_weight(
        A, B, B[0]
    ),
    "aten::mkldnn_linear": lambda: torch._C._nn.mkldnn_linear(A.to_mkldnn(), B.to_mkldnn(), B[0]),
    "mkldnn::_linear_pointwise": lambda: torch.ops.mkldnn._linear_pointwise(  # by name, as inductor's freezing makes it
        A, torch.ops.mkldnn._reorder_linear_weight(B, 32), B[0], "none", [], ""
    ),
    "quantized::linear_dynamic": quantised(nn.Linear(32, 4), A),
    "aten::quantized_lstm": quantised(nn.LSTM(32, 8), A[None]),
    "aten::quantized_gru": quantised(nn.GRU(32, 8), A[None]),
    "quantized::quantized_gru_cell_dynamic": quantised(nn.GRUCell(32, 8), A),
}


@pytest.mark.parametrize("operator", PRODUCTS)
@pytest.mark.filterwarnings("ignore:Sparse|.*quantization|.*deprecated")
def test_an_invariance_names_the_products_that_it_does_not_cover(operator: str) -> None:
    call = PRODUCTS[operator]
    reported = pytest.warns(msctx.MsctxWarning, match="batch_invariant does not hold for the matmul")
    with msctx.context(batch_invariant=True, matmul_algo="normal") as ctx, reported:
        call()
    assert [(row.requested, row.ran) for row in ctx.choices()] == [("batch_invariant", "torch")]
    assert operator.strip() in ctx.choices()[0].reasons[0]
    for options, why in (
        ({"thread_invariant": True, "fallback": "error"}, "thread_invariant does not hold"),
        ({"thread_invariant": True, "strict": True}, "thread_invariant does not hold"),
        *([({"matmul_algo": "strict", "fallback": "error"}, operator)] if operator.startswith(("mkldnn", "quantized")) else []),
    ):
        with msctx.context(**options), pytest.raises(RuntimeError, match=why):
            call()


def test_no_operator_of_products_is_forgotten() -> None:
    """By their names: all that this PyTorch has for CPU tensors is hooked, or made of what is, or no product."""
    with msctx.context(thread_invariant=True):
        torch.mm(A, B)
    others = "addr|addbmm|_native_multi_head_attention|sspaddmm"  # made of hooked ones, sums, or an error
    product = re.compile(
        r"aten::(\w*(mm|mv|dot|matmul|addr|attention|rnn_layer|d_lstm|d_gru))(_backward|_for_cpu|_v2|_impl)*_?"
    )
    for key in ("CPU", "SparseCPU", "SparseCsrCPU", "MkldnnCPU"):
        for name in torch._C._dispatch_get_registrations_for_dispatch_key(key):
            found = product.fullmatch(name.partition(".")[0])
            if found and not re.fullmatch(others, found[1]):
                (kernel,) = [line for line in torch._C._dispatch_dump_table(name).splitlines() if line.startswith(f"{key}: ")]
                assert "msctx" in kernel, name

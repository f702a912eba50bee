"""Whole modules under each mode: recurrent nets, attention, losses train, and give what float32 gives, to the mode's rounding."""

from itertools import product

import pytest
import torch
from recorded import each_mode
from torch import nn

import msctx
from msctx.options.precision_policy import precision_of, text_of

pytestmark = pytest.mark.usefixtures("one_thread")


class First(nn.Module):
    """Of what a module gives."""

    def __init__(self, inner, times=1):
        super().__init__()
        self.inner, self.times = inner, times

    def forward(self, x):
        return self.inner(*[x] * self.times)[0]


MODULES = {
    **{
        kind: lambda kind=kind: First(getattr(nn, kind)(8, 6, 2, batch_first=True, bidirectional=True))
        for kind in ("LSTM", "GRU", "RNN")
    },
    "attention": lambda: First(nn.MultiheadAttention(8, 2, batch_first=True), 3),
    "transformer": lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
    "convolutions": lambda: nn.Sequential(
        nn.Unflatten(-1, (4, 2)), nn.Conv2d(5, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.PReLU(8), nn.AvgPool2d(2), nn.Flatten()
    ),
    "instance norm": lambda: nn.Sequential(nn.Conv1d(5, 4, 3), nn.InstanceNorm1d(4, affine=True, track_running_stats=True)),
}


@each_mode
@pytest.mark.parametrize("name", MODULES)
def test_modules_train(mode, name):
    torch.manual_seed(0)
    module, x = MODULES[name](), torch.randn(3, 5, 8)
    if name == "convolutions":
        module = nn.Sequential(nn.Unflatten(2, (4, 2)), *list(module)[1:-1], nn.Flatten())
    truth = module.double()(x.double()).detach()
    module.float()
    precision = precision_of(text_of({"precision_mode": mode}))
    bound = 1e-2 if precision.needs_scaler else 8e-2 if precision.low else 1e-5
    with msctx.context(precision_mode=mode):
        y = module(x)
        torch.nn.functional.mse_loss(y, torch.zeros_like(y)).backward()
    assert float((y.detach() - truth).abs().max() / truth.abs().max()) < bound
    for parameter in module.parameters():
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32
        assert torch.isfinite(parameter.grad).all()


LAYOUTS = {
    "COO": torch.Tensor.to_sparse,
    "CSR": torch.Tensor.to_sparse_csr,
    "CSC": torch.Tensor.to_sparse_csc,
    "BSR": lambda t: t.to_sparse_bsr((2, 2)),
    "BSC": lambda t: t.to_sparse_bsc((2, 2)),
}


def test_attention_of_jagged_tensors():
    """torch.nested has rounded what it hands on to the dtype of autocast: a mode of float32 cannot hold."""
    given = torch.nested.nested_tensor([torch.randn(3, 16), torch.randn(5, 16)], layout=torch.jagged)
    heads = given.unflatten(-1, [2, 8]).transpose(1, 2)
    right = nn.functional.scaled_dot_product_attention(heads, heads, heads)
    with msctx.context(precision_mode="force_fp16"):
        found = nn.functional.scaled_dot_product_attention(heads, heads, heads)
    assert found.dtype == torch.float16
    torch.testing.assert_close(found.values().float(), right.values(), atol=3e-3, rtol=3e-3)
    for mode in ("force_fp32", "cube_fp16in_fp32out"):
        with (
            msctx.context(precision_mode=mode),
            pytest.raises(RuntimeError, match="jagged tensors set precision_mode=force_fp16"),
        ):
            nn.functional.scaled_dot_product_attention(heads, heads, heads)


SPARSE_PRODUCTS = {  # of a sparse factor, a layer's output and a bias, with the layouts that PyTorch's CPU kernels take
    "sparse.mm": (lambda s, y, b: torch.sparse.mm(s, y), "COO CSR CSC BSR"),
    "sparse.mm, sparse second": (lambda s, y, b: torch.sparse.mm(y, s), "COO CSR CSC BSC"),
    "sparse.mm, mean": (lambda s, y, b: torch.sparse.mm(s, y, "mean"), "CSR"),
    "@": (lambda s, y, b: s @ y, "COO CSR CSC BSR"),
    "@, sparse second": (lambda s, y, b: y @ s, "COO CSR CSC BSC"),
    "@ of three dimensions": (lambda s, y, b: torch.stack([y, y]) @ s, "COO CSR CSC BSC"),
    "mv": (lambda s, y, b: torch.mv(s, y[0]), "COO CSR CSC BSR"),
    "addmv": (lambda s, y, b: torch.addmv(b, s, y[0]), "CSR CSC BSR"),
    "addmm": (lambda s, y, b: torch.addmm(y, s, y), "COO CSR CSC BSR"),
    "addmm, sparse second": (lambda s, y, b: torch.addmm(y, y, s), "CSR CSC BSC"),
    "sparse.addmm": (lambda s, y, b: torch.sparse.addmm(y, s, y), "COO CSR CSC BSR"),
    "linear": (lambda s, y, b: nn.functional.linear(y, s), "COO CSR CSC BSR"),
    "linear with a bias": (lambda s, y, b: nn.functional.linear(y, s, b), "CSR CSC BSR"),
    "bmm": (lambda s, y, b: torch.bmm(torch.stack([s, s]), torch.stack([y, y])), "COO"),
    "sampled_addmm": (lambda s, y, b: torch.sparse.sampled_addmm(s, y, y), "CSR"),
    "hspmm": (lambda s, y, b: torch.hspmm(s, y), "COO"),
    "an output made sparse": (lambda s, y, b: torch.sparse.mm(y.to_sparse_csr(), s.to_dense()), "COO CSR CSC BSR BSC"),
    "both sparse": (lambda s, y, b: torch.sparse.mm(s, y.to_sparse()), "COO"),
}


def product_of(call, s, y, bias, gradients):
    """The dense result, and the gradients of both factors that are wanted."""
    s, y = (t.detach().requires_grad_(wanted) for t, wanted in zip((s, y), gradients, strict=True))
    result = call(s, y, bias)
    result = result if result.layout == torch.strided else result.to_dense()
    if any(gradients):
        result.double().square().sum().backward()
    return [result.detach(), s.grad, y.grad]


@pytest.mark.filterwarnings("ignore:.*beta state", "ignore:.*gradients from float16")
@pytest.mark.parametrize("mode", ["allow_mix_precision_bf16", "allow_mix_precision_fp16", "force_fp16"])
@pytest.mark.parametrize("name", SPARSE_PRODUCTS)
def test_sparse_products_take_the_dtype_of_the_sparse_factor(name, mode):
    """A layer's output is cast to it: the product and the gradients are those of the same factors in float64."""
    call, layouts = SPARSE_PRODUCTS[name]
    torch.manual_seed(0)
    values, x, layer, bias = torch.randn(6, 6).tril(-1), torch.randn(6, 6), nn.Linear(6, 6), torch.randn(6)
    compared = set()
    for layout, *gradients in product(LAYOUTS, [False, True], [False, True]):
        s, s64 = LAYOUTS[layout](values), LAYOUTS[layout](values.double())
        try:
            product_of(call, s, x, bias, gradients)
        except RuntimeError:
            continue  # PyTorch has no such product, or no such gradient
        with msctx.context(precision_mode=mode):
            y = layer(x)
            found = product_of(call, s, y, bias, gradients)
        right = product_of(call, s64, y.double(), bias.double(), gradients)
        assert y.dtype == (torch.bfloat16 if mode.endswith("bf16") else torch.float16)
        assert found[0].dtype == torch.float32
        assert [None if t is None else t.dtype for t in found[1:]] == [
            dtype if wanted else None for dtype, wanted in zip((torch.float32, y.dtype), gradients, strict=True)
        ]
        for one, other, bound in zip(found, right, (1e-5, 1e-5, 1e-2), strict=True):
            if one is not None:
                one, other = (t.to_dense() if t.layout != torch.strided else t for t in (one, other))
                assert (one - other).abs().max() <= bound * other.abs().max()
        compared.add(layout)
    assert compared >= set(layouts.split())

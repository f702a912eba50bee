"""check_bprop and check_bprop_values: wrong backwards are named, right ones pass, and torch is left as it was found."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import msctx
from msctx.errors import GradientDtypeError, GradientError, MsctxWarning

HERE = re.escape(__file__)


def scale(backward: Callable[..., Any]) -> Any:
    """A Function of a tensor, a number and a tensor, with this backward."""

    class Scale(Function):
        @staticmethod
        def forward(ctx, x, factor, bias):
            ctx.factor = factor
            return x * factor + bias

    Scale.backward = staticmethod(backward)
    return Scale


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.linspace(0.5, 2, max(1, torch.Size(shape).numel())).reshape(shape).to(dtype).requires_grad_()


right = scale(lambda ctx, g: (g * ctx.factor, None, g))

WRONG = {
    "too few": (lambda ctx, g: (g * 2, None), GradientError, "returned 2 gradients for 3 inputs; return one for each input"),
    "sum": (lambda ctx, g: (g * 2, None, g.expand(5, 3)), GradientError, r"shape \[5, 3\] for input 2, whose shape is \[3\]"),
    "shape": (lambda ctx, g: (g[:2], None, g), GradientError, r"shape \[2\] for input 0, whose shape is \[3\]"),
    "cast": (
        lambda ctx, g: (g.double(), None, g),
        GradientDtypeError,
        r"torch.float64 for input 0, whose dtype is torch.float32",
    ),
    "number": (lambda ctx, g: (2.0, None, g), GradientDtypeError, "returned a float as the gradient of input 0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(name: str) -> None:
    backward, kind, text = WRONG[name]
    with msctx.context(check_bprop=True), pytest.raises(kind, match=text) as caught:
        scale(backward).apply(leaf(3), 2, leaf(3)).sum().backward()
    assert isinstance(caught.value, TypeError if kind is GradientDtypeError else ValueError)
    assert re.search(rf"<lambda> \({HERE}:\d+\)", str(caught.value))


cast = scale(lambda ctx, g: (g.double(), None, g))


def test_what_is_right_passes_and_the_scope_of_the_forward_decides() -> None:
    x, bias = leaf(3), leaf(3)
    with msctx.context(check_bprop=True, check_bprop_values=True):
        right.apply(x, 2, bias).sum().backward()
        right.apply(x.detach(), 2, bias.detach())
        with torch.no_grad():
            right.apply(x, 2, bias)
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2, 2]
    with msctx.context(check_bprop=True):
        y = cast.apply(leaf(3), 2, leaf(3)).sum()
    with pytest.raises(GradientDtypeError):
        y.backward()
    y = cast.apply(leaf(3), 2, leaf(3)).sum()
    with msctx.context(check_bprop=True):
        y.backward()


class Square(Function):
    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g


class InPlace(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g * 3


def test_double_backward_transforms_and_compiled_code() -> None:
    x = leaf(3)
    with msctx.context(check_bprop=True, check_bprop_values=True):
        (first,) = torch.autograd.grad(Square.apply(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        assert second.tolist() == [2, 2, 2]
        assert torch.func.grad(lambda x: Square.apply(x).sum())(torch.ones(3)).tolist() == [2, 2, 2]
        torch._dynamo.reset()
        torch.compile(lambda x: Square.apply(x).sum(), backend="aot_eager", fullgraph=True)(x).backward()  # unchecked
    assert torch.equal(x.grad, 2 * x.detach())


@torch.library.custom_op("msctx_tests::shift", mutates_args=())
def shift(x: torch.Tensor, by: float) -> torch.Tensor:
    return x + by


shift.register_autograd(lambda ctx, g: (g.double(), None))


def test_operators_with_register_autograd() -> None:
    with (
        msctx.context(check_bprop=True),
        pytest.raises(GradientDtypeError, match=rf"msctx_tests_shift_default\.backward \({HERE}:\d+\) .* for input 0, whose"),
    ):
        shift(leaf(3), 2.0).sum().backward()


class Product(Function):
    slip = 1.0

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w, (x * x).sum()

    @staticmethod
    def backward(ctx, g, h):
        x, w = ctx.saved_tensors
        return (g @ w.mH) + 2 * x.conj() * h, Product.slip * (x.mH @ g)


class Narrow(Function):
    @staticmethod
    def forward(ctx, x):
        return x @ torch.ones(3, 3)

    @staticmethod
    def backward(ctx, g):
        return g @ torch.ones(3, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_values_are_compared(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = leaf(4, 5, dtype=dtype), leaf(5, 2, dtype=dtype)
    with msctx.context(check_bprop=True, check_bprop_values=True):
        before = torch.get_rng_state()
        Product.apply(x, w)
        assert torch.equal(before, torch.get_rng_state())
        monkeypatch.setattr(Product, "slip", 1.01)
        with pytest.raises(GradientError, match=r"Product\.backward .*with respect to input 1.*arguments 0, 1, which"):
            Product.apply(x, w)
        with msctx.context(check_bprop_values=False):
            Product.apply(x, w)
    Product.apply(x, w)


def test_a_function_that_does_not_run_in_float64_is_left_out_with_one_warning(recwarn: pytest.WarningsRecorder) -> None:
    x = torch.ones(100, 3, requires_grad=True)
    with msctx.context(check_bprop=True, check_bprop_values=True):
        for _ in range(3):
            Narrow.apply(x).sum().backward()
            InPlace.apply(leaf(3) * 1)  # on copies
    (found,) = [w for w in recwarn if w.category is MsctxWarning and "compiled" not in str(w.message)]
    assert re.search(r"leaves out Narrow\.backward .*it does not run in float64", str(found.message))

"""check_bprop and check_bprop_values: wrong backwards are named, right ones pass, and torch is left as it was found."""

from __future__ import annotations

import gc
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.autograd import Function
from torch.autograd.function import BackwardCFunction, once_differentiable

import msctx
from msctx.errors import GradientDtypeError, GradientError, MsctxWarning

FOUND = vars(Function)["apply"]
HERE = re.escape(__file__)


@pytest.fixture(autouse=True)
def as_found() -> Iterator[None]:
    yield
    assert "__init__" not in vars(BackwardCFunction)
    assert vars(Function)["apply"] is FOUND


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
    "too few": (
        lambda ctx, g: (g * 2, None),
        GradientError,
        r"returned 2 gradients for 3 inputs; return one for each input \(x, factor",
    ),
    "too many": (lambda ctx, g: (g * 2, None, g, None), GradientError, "returned 4 gradients for 3 inputs"),
    "one alone": (lambda ctx, g: g, GradientError, "returned 1 gradient for 3 inputs"),
    "sum": (lambda ctx, g: (g * 2, None, g.expand(5, 3)), GradientError, r"shape \[5, 3\] for bias, whose shape is \[3\]"),
    "shape": (lambda ctx, g: (g[:2], None, g), GradientError, r"shape \[2\] for x, whose shape is \[3\]"),
    "expand": (lambda ctx, g: (g.sum(), None, g), GradientError, r"shape \[\] for x"),
    "cast": (lambda ctx, g: (g.double(), None, g), GradientDtypeError, r"torch.float64 for x, whose dtype is torch.float32"),
    "half": (lambda ctx, g: (g, None, g.half()), GradientDtypeError, "float16 for bias"),
    "number": (lambda ctx, g: (2.0, None, g), GradientDtypeError, "returned a float as the gradient of x"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(name: str) -> None:
    backward, kind, text = WRONG[name]
    with msctx.context(check_bprop=True), pytest.raises(kind, match=text) as caught:
        scale(backward).apply(leaf(3), 2, leaf(3)).sum().backward()
    assert isinstance(caught.value, TypeError if kind is GradientDtypeError else ValueError)
    assert re.search(rf"<lambda> \({HERE}:\d+\)", str(caught.value))


def test_what_is_right_passes() -> None:
    x, bias = leaf(3), leaf(3)
    with msctx.context(check_bprop=True, check_bprop_values=True):
        right.apply(x, 2, bias).sum().backward()
        scale(lambda ctx, g: (None, None, g)).apply(x, 2, bias)  # None is allowed
        right.apply(x.detach(), 2, bias.detach())
        with torch.no_grad():
            right.apply(x, 2, bias)
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2, 2]


def test_none_is_allowed() -> None:
    x = leaf(3)
    with msctx.context(check_bprop=True):
        scale(lambda ctx, g: (None, None, g)).apply(x, 2, leaf(3)).sum().backward()
    assert x.grad is None


# --- which scope decides ----------------------------------------------------------------------------------------------

cast = scale(lambda ctx, g: (g.double(), None, g))


def test_the_scope_of_the_forward_decides() -> None:
    with msctx.context(check_bprop=True):
        y = cast.apply(leaf(3), 2, leaf(3)).sum()
    with pytest.raises(GradientDtypeError):
        y.backward()
    y = cast.apply(leaf(3), 2, leaf(3)).sum()
    with msctx.context(check_bprop=True):
        y.backward()


def test_an_inner_scope_switches_it_off() -> None:
    with msctx.context(check_bprop=True):
        with msctx.context(check_bprop=False):
            cast.apply(leaf(3), 2, leaf(3)).sum().backward()
        with pytest.raises(GradientDtypeError):
            cast.apply(leaf(3), 2, leaf(3)).sum().backward()


def test_another_thread_is_not_concerned() -> None:
    problems: list[Exception] = []

    def run() -> None:
        try:
            cast.apply(leaf(3), 2, leaf(3)).sum().backward()
        except Exception as error:
            problems.append(error)

    with msctx.context(check_bprop=True):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert problems == []


def test_the_backward_of_another_thread_is() -> None:
    with msctx.context(check_bprop=True):
        y = cast.apply(leaf(3), 2, leaf(3)).sum()
    problems: list[Exception] = []

    def run() -> None:
        try:
            y.backward()
        except Exception as error:
            problems.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert [type(problem) for problem in problems] == [GradientDtypeError]


def test_a_checked_graph_is_freed_at_once() -> None:
    gc.disable()
    try:
        with msctx.context(check_bprop=True):
            y = right.apply(leaf(3), 2, leaf(3))
        node = weakref.ref(y.grad_fn)
        del y
        assert node() is None
    finally:
        gc.enable()


# --- kinds of Functions -----------------------------------------------------------------------------------------------


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


class WrongSquare(Square):
    generate_vmap_rule = True

    @staticmethod
    def backward(ctx, g):
        return g.double()


class InPlace(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g * 3, None


def test_double_backward() -> None:
    x = leaf(3)
    with msctx.context(check_bprop=True, check_bprop_values=True):
        (first,) = torch.autograd.grad(Square.apply(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
    assert second.tolist() == [2, 2, 2]


def test_in_place_and_once_differentiable() -> None:
    with (
        msctx.context(check_bprop=True),
        pytest.raises(GradientError, match=r"InPlace\.backward .* returned 2 gradients for 1"),
    ):
        InPlace.apply(leaf(3) * 1).sum().backward()
    with (
        msctx.context(check_bprop=True),
        pytest.raises(GradientError, match=r"InPlace\.backward .* returned 2 gradients for 1"),
    ):
        InPlace.apply((leaf(3) * 1)[:2]).sum().backward()


def test_transforms() -> None:
    with msctx.context(check_bprop=True, check_bprop_values=True):
        assert torch.func.grad(lambda x: Square.apply(x).sum())(torch.ones(3)).tolist() == [2, 2, 2]
        with pytest.raises(GradientDtypeError, match=r"WrongSquare\.backward .* for x"):
            torch.func.grad(lambda x: WrongSquare.apply(x).sum())(torch.ones(3))
        with pytest.raises(GradientDtypeError, match=r"WrongSquare"):
            torch.vmap(torch.func.grad(lambda x: WrongSquare.apply(x).sum()))(torch.ones(2, 3))


@torch.library.custom_op("msctx_tests::shift", mutates_args=())
def shift(x: torch.Tensor, by: float) -> torch.Tensor:
    return x + by


shift.register_autograd(lambda ctx, g: (g.double(), None))


@torch.library.custom_op("msctx_tests::total", mutates_args=())
def total(xs: list[torch.Tensor], by: float) -> torch.Tensor:
    return torch.stack(xs).sum(0) + by


total.register_autograd(lambda ctx, g: ([g, g[:1]], None))


def test_operators_with_register_autograd() -> None:
    with msctx.context(check_bprop=True):
        with pytest.raises(GradientDtypeError, match=rf"operator msctx_tests::shift \({HERE}:\d+\) .* for x, whose"):
            shift(leaf(3), 2.0).sum().backward()
        with pytest.raises(GradientError, match=r"operator msctx_tests::total .*shape \[1\] for input 1, whose shape is \[3\]"):
            total([leaf(3), leaf(3)], 2.0).sum().backward()


def test_a_chosen_dtype_of_gradients_is_the_one_that_counts() -> None:
    x = leaf(3)
    if not hasattr(x, "grad_dtype"):
        pytest.skip("this torch has no grad_dtype")
    x.grad_dtype = torch.float64
    with msctx.context(check_bprop=True):
        cast.apply(x, 2, leaf(3)).sum().backward()


def test_compiled_code_runs_unchecked() -> None:
    torch._dynamo.reset()
    x = leaf(3)
    with msctx.context(check_bprop=True, check_bprop_values=True):
        torch.compile(lambda x: Square.apply(x).sum(), backend="aot_eager", fullgraph=True)(x).backward()
    assert torch.equal(x.grad, 2 * x.detach())


class Unsummed(Function):
    @staticmethod
    def forward(ctx, x, w):
        return x * w

    @staticmethod
    def backward(ctx, gradient):
        return None, gradient

    line = backward.__func__.__code__.co_firstlineno  # type: ignore[attr-defined]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_function_that_is_compiled_has_its_own_name(backend: str) -> None:
    """Where torch traces it, or runs it for another backend."""
    torch._dynamo.reset()
    expected = rf"Unsummed\.backward \({HERE}:{Unsummed.line}\) returned a gradient of shape \[5, 3\] for an input, whose"
    with pytest.raises(Exception, match=expected), msctx.context(check_bprop=True):
        torch.compile(lambda x, w: Unsummed.apply(x, w).sum(), backend=backend)(torch.ones(5, 3), leaf(3)).backward()
    torch._dynamo.reset()


def test_torchs_own_functions_are_left_alone() -> None:
    x = leaf(3)
    with msctx.context(check_bprop=True, check_bprop_values=True):
        torch.utils.checkpoint.checkpoint(lambda a, b: a * 2 + b, x, 1.0, use_reentrant=True).sum().backward()
    assert x.grad is not None


# --- values -----------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64])
def test_values_are_compared(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = leaf(4, 5, dtype=dtype), leaf(5, 2, dtype=dtype)
    with msctx.context(check_bprop=True, check_bprop_values=True):
        before = torch.get_rng_state()
        Product.apply(x, w)
        assert torch.equal(before, torch.get_rng_state())
        monkeypatch.setattr(Product, "slip", 1.01)
        with pytest.raises(GradientError, match=r"Product\.backward .*gradient of w .*along a random direction .* differences"):
            Product.apply(x, w)
        with msctx.context(check_bprop_values=False):
            Product.apply(x, w)
    Product.apply(x, w)


class Dropped(Function):
    @staticmethod
    def forward(ctx, x):
        return torch.nn.functional.dropout(x, 0.5)

    @staticmethod
    def backward(ctx, g):
        return g


class Kink(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.relu()

    @staticmethod
    def backward(ctx, g):
        return g * (ctx.saved_tensors[0] > 0)


class EvenKink(Function):
    """Differences on both sides together are 0 there, as is what it returns."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.abs()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].sign()


class Narrow(Function):
    @staticmethod
    def forward(ctx, x):
        return x @ torch.ones(3, 3)

    @staticmethod
    def backward(ctx, g):
        return g @ torch.ones(3, 3)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (Dropped, "two calls with the same inputs differ"),
        (Kink, "not smooth"),
        (EvenKink, "not smooth"),
        (Narrow, "its forward raises in float64"),
    ],
)
def test_what_cannot_be_compared_is_left_out_with_one_warning(
    function: Any, why: str, recwarn: pytest.WarningsRecorder
) -> None:
    x = (torch.zeros(3) if function in (Kink, EvenKink) else torch.ones(100, 3)).requires_grad_()
    with msctx.context(check_bprop=True, check_bprop_values=True):
        for _ in range(3):
            function.apply(x).sum().backward()
    (found,) = [w for w in recwarn if w.category is MsctxWarning and "compiled" not in str(w.message)]
    assert re.search(rf"leaves out {function.__name__}\.backward .*{why}", str(found.message))


def test_a_function_with_no_slope_but_curvature_is_compared(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    with msctx.context(check_bprop=True, check_bprop_values=True):
        SquareOfZero.apply(torch.zeros(3, requires_grad=True))
        monkeypatch.setattr(SquareOfZero, "slip", 1.0)
        with pytest.raises(GradientError, match="along a random direction"):
            SquareOfZero.apply(torch.zeros(3, requires_grad=True))
    assert not [w for w in recwarn if "leaves out" in str(w.message)]


class SquareOfZero(Function):
    slip = 0.0

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return g * (2 * ctx.saved_tensors[0] + SquareOfZero.slip)


def test_in_place_functions_are_compared_with_copies() -> None:
    x = leaf(3) * 1
    before = x.detach().clone()
    with msctx.context(check_bprop=True, check_bprop_values=True):
        assert torch.equal(InPlaceRight.apply(x), before * 3)


class InPlaceRight(InPlace):
    @staticmethod
    def backward(ctx, g):
        return g * 3


def test_values_need_the_check(recwarn: pytest.WarningsRecorder) -> None:
    with msctx.context(check_bprop_values=True) as ctx:
        (row,) = ctx.plan.rows
        assert row.status == "inert"
        assert "check_bprop" in row.reason

"""``msctx.grad``, ``msctx.value_and_grad`` and ``grad_for_scalar``."""

import pytest
import torch

import msctx


def product(x: torch.Tensor | float, y: torch.Tensor | float) -> torch.Tensor | float:
    return x * y


def test_numbers_are_constants_unless_grad_for_scalar() -> None:
    both = msctx.grad(product, grad_position=(0, 1))
    with pytest.raises(TypeError, match="grad_for_scalar=True"):
        both(2.0, 3.0)
    found = both(torch.tensor(2.0), 3.0)
    assert (float(found[0]), found[1]) == (3.0, None)
    with msctx.context(grad_for_scalar=True):
        assert [float(one) for one in both(2.0, 3)] == [3.0, 2.0]
        with msctx.context(grad_for_scalar=False), pytest.raises(TypeError):
            both(2.0, 3.0)
    with pytest.raises(TypeError):
        both(2.0, 3.0)


def test_the_value_and_the_gradient_of_the_sum_of_what_is_returned() -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    value, gradient = msctx.value_and_grad(lambda x: (x**2, {"cubes": x**3, "places": x.argmax()}))(x)
    torch.testing.assert_close(value[0], torch.tensor([1.0, 4.0]))
    torch.testing.assert_close(gradient, 2 * x.detach() + 3 * x.detach() ** 2)
    assert x.grad is None


def test_what_cannot_be_differentiated() -> None:
    with pytest.raises(TypeError, match="none of the arguments at \\(0,\\)"):
        msctx.grad(product)(torch.ones(2, dtype=torch.int64), 2)
    with pytest.raises(TypeError, match="returns no tensor"):
        msctx.grad(lambda x: 1)(torch.ones(2))


def test_a_place_that_is_none() -> None:
    for place, error in (("x", TypeError), (True, TypeError), ((), TypeError), (-1, ValueError)):
        with pytest.raises(error, match="grad_position="):
            msctx.grad(product, grad_position=place)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"grad_position=3 .* these are: 0, 1$"):
        msctx.grad(product, grad_position=3)(torch.ones(1), 2.0)

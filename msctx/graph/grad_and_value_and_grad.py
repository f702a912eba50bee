"""Gradients as functions: grad and value_and_grad."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

for_scalars = False
"""grad_for_scalar: whether numbers of Python have gradients, too."""


def grad(function: Callable[..., Any], grad_position: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """The function that returns the gradients of *function*; see :func:`value_and_grad`."""
    both = value_and_grad(function, grad_position)

    @functools.wraps(function)
    def gradients(*args: Any, **kwargs: Any) -> Any:
        return both(*args, **kwargs)[1]

    return gradients


def value_and_grad(function: Callable[..., Any], grad_position: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """The function that returns what *function* returns, and its gradients: those of the sum of all that it returns.

    It may be used on its own result, for higher derivatives.

    Args:
        grad_position: the place of the argument to differentiate by, or a tuple of places, which gives a tuple of gradients.

    The gradient of a tensor has its shape and dtype. Under ``grad_for_scalar=True`` numbers of Python have gradients, too: tensors
    without dimensions, in torch's default dtype. Otherwise they are constants, whose gradients are None.

    Raises:
        TypeError, ValueError: *grad_position* is no place of an argument; at a call: there is no such argument, or nothing named can
            be differentiated by.
    """
    places = grad_position if isinstance(grad_position, tuple) else (grad_position,)
    if not places or not all(type(place) is int for place in places):
        raise TypeError(f"grad_position={grad_position!r} is no place of an argument: a number from 0 on, or a tuple of them")
    if min(places) < 0:
        raise ValueError(f"grad_position={grad_position!r}: places are counted from 0 on")

    name = getattr(function, "__name__", "the function")

    @functools.wraps(function)
    def both(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        if max(places) >= len(args):
            allowed = ", ".join(map(str, range(len(args)))) or "none"
            raise ValueError(
                f"grad_position={grad_position!r} is no argument that the call gives by place; these are: {allowed}"
            )
        given = {place: tensor for place in places if (tensor := _leaf(args[place])) is not None}
        if not given:
            more = "" if for_scalars else "; grad_for_scalar=True takes numbers"
            raise TypeError(f"{name}: none of the arguments at {places} is a tensor of floating-point numbers{more}")

        def total(*chosen: torch.Tensor) -> tuple[torch.Tensor, Any]:
            filled = {**dict(enumerate(args)), **dict(zip(given, chosen, strict=True))}
            value = function(*filled.values(), **kwargs)
            sums = [leaf.sum() for leaf in pytree.tree_leaves(value) if _is_differentiable(leaf)]
            if not sums:
                raise TypeError(f"{name} returns no tensor of floating-point numbers")
            return torch.stack(sums).sum() if len(sums) > 1 else sums[0], value

        found, (_, value) = torch.func.grad_and_value(total, argnums=tuple(range(len(given))), has_aux=True)(*given.values())
        by_place = dict(zip(given, found, strict=True))
        gradients = tuple(by_place.get(place) for place in places)
        return value, gradients[0] if isinstance(grad_position, int) else gradients

    return both


def _is_differentiable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _leaf(value: Any) -> torch.Tensor | None:
    if isinstance(value, torch.Tensor):
        return value if _is_differentiable(value) else None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return torch.tensor(float(value), dtype=torch.get_default_dtype()) if for_scalars and is_number else None

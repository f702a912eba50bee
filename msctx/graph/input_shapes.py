"""The shapes that inputs of compiled code may have: gears, each with code of its own, and ranges."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch

from msctx.errors import GraphError
from msctx.options.switch_values import Shapes

_MARKS = ("_dynamo_", "_has_dynamo_", "_specialize_on")


def named(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by the names that *function* gives them; those of ``*args`` with their places."""
    try:
        signature = inspect.signature(function)
        bound = signature.bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # the call itself will raise, or there is no signature
        return {f"args.{i}": value for i, value in enumerate(args)} | dict(kwargs)
    found: dict[str, Any] = {}
    for name, value in bound.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            found |= {f"{name}.{i}": one for i, one in enumerate(value)}
        else:
            found |= value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
    return found


TOO_FEW = "{} has shapes of {} inputs, and {} is called with fewer tensors: {}."


def _check_gear(wanted: Shapes, what: str, inputs: Mapping[str, Any]) -> None:
    names = [name for name, _ in wanted.gears[0]]
    tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    if wanted.named:
        if absent := ", ".join(name for name in names if name not in tensors):
            takes = ", ".join(inputs) or "no arguments"
            raise GraphError(f"input_shape names {absent}, and {what} is called with no such tensors. It takes {takes}.")
        tensors = {name: tensors[name] for name in names}
    if len(tensors) < len(names):
        raise GraphError(TOO_FEW.format("input_shape", len(names), what, len(tensors)))
    given = tuple((name, tuple(tensor.shape)) for name, tensor in zip(names, tensors.values(), strict=False))
    if given not in wanted.gears:
        raise GraphError.shape(f"{what} is called with {text(given)}", "dynamic_dims", [*map(text, wanted.gears)])


@contextmanager
def of_shape(wanted: Shapes, what: str, inputs: Mapping[str, Any]) -> Iterator[None]:
    """Inside, Dynamo compiles for the gear of a call's inputs, or for their ranges.

    Raises:
        GraphError: they have no gear, a size is outside its range, there are other dimensions, or fewer tensors.
    """
    if wanted.gears:
        _check_gear(wanted, what, inputs)
    tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    if len(tensors) < len(wanted.ranges):
        raise GraphError(TOO_FEW.format("dynamic_inputs_shape_range", len(wanted.ranges), what, len(tensors)))
    touched: list[tuple[torch.Tensor, dict[str, Any]]] = []
    try:
        for (name, tensor), ranges in zip(tensors.items(), wanted.ranges, strict=False):
            allowed = [", ".join(map(_range, ranges)) or "a scalar"]
            if tensor.ndim != len(ranges) or not all(
                low <= size <= high or low < 0 for size, (low, high) in zip(tensor.shape, ranges, strict=True)
            ):
                shape = f"{what} is called with {text(((name, tuple(tensor.shape)),))}"
                raise GraphError.shape(shape, "dynamic_inputs_shape_range", allowed)
            touched.append((tensor, _marks(tensor)))
            for dim, (low, high) in enumerate(ranges if wanted.dynamic is not False else ()):
                if low < 0:
                    torch._dynamo.maybe_mark_dynamic(tensor, dim)
                elif low < high and tensor.shape[dim] > 1:  # a size of 1 is code of its own
                    torch._dynamo.mark_dynamic(tensor, dim, min=max(low, 2), max=high)
        yield
    finally:
        for tensor, before in touched:
            for key in _marks(tensor):
                delattr(tensor, key)
            vars(tensor).update(before)


def _marks(tensor: torch.Tensor) -> dict[str, Any]:
    """Dynamo's, among the tensor's attributes; the program may have made some."""
    return {key: copy(value) for key, value in vars(tensor).items() if key.startswith(_MARKS)}


def _range(ends: tuple[int, int]) -> str:
    low, high = ends
    return "any" if low < 0 else str(low) if low == high else f"{low}~{high}"


def text(shapes: tuple[tuple[str, tuple[int, ...]], ...]) -> str:
    return "; ".join(f"{name}:{','.join(map(str, shape)) or 0}" for name, shape in shapes)

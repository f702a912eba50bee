"""Expressions of graphs, as Dynamo captures them and of ATen's operators, and patterns of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Any

from torch import fx

_SAME = {"truediv": "div", "subtract": "sub", "multiply": "mul", "divide": "div", "clip": "clamp"}
_NAMES = {
    "mean": ("input", "dim", "keepdim"),
    "var": ("input", "dim"),
    "clamp": ("input", "min", "max"),
    "clamp_min": ("input", "min"),
    "clamp_max": ("input", "max"),
}


def call_of(value: Any) -> tuple[Any, ...]:
    """What a node calls, by its plain name, and its arguments: one of a mean and a variance over the last dimension. Else ``()``."""
    if not isinstance(value, fx.Node) or value.op not in ("call_function", "call_method"):
        return ()
    name = value.target if isinstance(value.target, str) else getattr(value.target, "__name__", "")
    name = _SAME.get(name, name.partition(".")[0])  # not iadd or imul, which write into their input
    if name not in _NAMES:
        return () if value.kwargs else ("pow", *value.args, 2) if name == "square" else (name, *value.args)
    given = dict(zip(_NAMES[name], value.args, strict=False)) | value.kwargs
    if name.startswith("clamp"):
        return "clamp", given.get("input"), given.get("min"), given.get("max")
    of, dim, kept = given.pop("input", None), given.pop("dim", None), given.pop("keepdim", False)
    is_biased = given == {} if name == "mean" else given in ({"unbiased": False}, {"correction": 0})
    return (name, of) if is_biased and kept is True and dim in (-1, [-1], (-1,)) else ()


def match(pattern: Any, value: Any, found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What the names in a pattern stand for: a tuple is a call, a list has alternatives."""
    if isinstance(pattern, list):
        for one in pattern:
            yield from match(one, value, found)
    elif isinstance(pattern, str):
        if found.get(pattern, value) is value:
            yield found | {pattern: value}
    elif not isinstance(pattern, tuple):
        if pattern == value:
            yield found
    elif (call := call_of(value)) and (call[0], len(call)) == (pattern[0], len(pattern)):
        for args in permutations(call[1:]) if call[0] in ("add", "mul") else [call[1:]]:
            results = [found]
            for part, arg in zip(pattern[1:], args, strict=True):
                results = [more for result in results for more in match(part, arg, result)]
            yield from results

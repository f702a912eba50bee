"""Passes that are off unless named: each replaces one pattern in a captured graph by one operator.

They see graphs as Dynamo captures them, before gradients are derived: the backward pass is that of the one operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Set
from typing import Any

import torch
from torch import fx

Match = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""What a node is replaced by: a function and its arguments."""
_SAME = {"truediv": "div", "subtract": "sub", "multiply": "mul", "divide": "div", "clip": "clamp"}


def apply(graph: fx.GraphModule, passes: Collection[str]) -> fx.GraphModule:
    """Replace what the named passes match; the graph itself is changed."""
    from torch._dynamo.utils import counters

    if not passes:
        return graph
    written = {_storage(value) for value in map(_meta, graph.graph.nodes) if value is not None and value._version}
    for name in passes:
        find, count = PASSES[name], 0
        for node in [*graph.graph.nodes]:
            if not node.users or (found := next(find(node), None)) is None:
                continue
            function, args, kwargs = found
            if not _is_the_same(node, args, written):
                continue
            with graph.graph.inserting_before(node):
                made = graph.graph.call_function(function, args, kwargs)
            made.meta = dict(node.meta)
            node.replace_all_uses_with(made)
            _erase(graph.graph, node)
            count += 1
        counters["msctx"][name] += count
    graph.graph.lint()
    graph.recompile()
    return graph


def _is_the_same(node: fx.Node, args: tuple[Any, ...], written: Set[int | None]) -> bool:
    """Whether one operator in the place of *node* gives the same: all dtypes are one, and nothing is written in between.

    The operator reads its arguments later than the first node of the pattern did. A write to *node* itself comes after both.
    """
    read = {arg for arg in args if isinstance(arg, fx.Node)}
    inside, waiting = {*read}, [*node.all_input_nodes]
    while waiting:
        if (one := waiting.pop()) not in inside:
            inside.add(one)
            waiting += one.all_input_nodes
    values, dtypes = [_meta(one) for one in inside], {value.dtype for value in map(_meta, {node} | read) if value is not None}
    return len(dtypes) == 1 and all(value is not None and _storage(value) not in written for value in values)


def _storage(value: torch.Tensor) -> int | None:
    """What a tensor shares with its views and with what ``detach`` and ``data`` give of it."""
    return value.untyped_storage()._cdata if torch._C._has_storage(value) else None


def _erase(graph: fx.Graph, node: fx.Node) -> None:
    """Take out a node, and what was computed for it alone. What writes into a tensor is no part of a pattern."""
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if one.op in ("call_function", "call_method") and not one.users and not one._erased:
            waiting += one.all_input_nodes
            graph.erase_node(one)


def _op(value: Any) -> str:
    """The plain name of what a node calls: of an operator of Python's, a function of torch, or a method."""
    if not isinstance(value, fx.Node) or value.op not in ("call_function", "call_method"):
        return ""
    name = value.target if isinstance(value.target, str) else getattr(value.target, "__name__", "")
    return "" if name in ("iadd", "imul") else _SAME.get(name, name)  # those write into their input


def _argument(node: fx.Node, place: int, *names: str, default: Any = None) -> Any:
    if len(node.args) > place:
        return node.args[place]
    return next((node.kwargs[name] for name in names if name in node.kwargs), default)


def _two(node: Any, name: str, *, swapped: bool = True) -> Iterator[tuple[Any, Any]]:
    """The two arguments of a binary operator, in both orders."""
    if _op(node) == name and len(node.args) == 2 and not node.kwargs:
        yield node.args[0], node.args[1]
        if swapped:
            yield node.args[1], node.args[0]


def _meta(node: Any) -> torch.Tensor | None:
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


# --- layer norm, written out ------------------------------------------------------------------------------------------


def _layer_norm(node: fx.Node) -> Iterator[Match]:
    """``(x - mean) / sqrt(var + eps) * weight + bias`` over the last dimension."""
    for scaled, bias in _two(node, "add"):
        for normal, weight in _two(scaled, "mul"):
            for x, eps in _normalised(normal):
                if _is_vector_of(weight, x) and _is_vector_of(bias, x):
                    yield torch.nn.functional.layer_norm, (x, (_meta(x).shape[-1],), weight, bias, eps), {}  # type: ignore[union-attr]


def _is_vector_of(value: Any, x: fx.Node) -> bool:
    vector, whole = _meta(value), _meta(x)
    return vector is not None and whole is not None and vector.dim() == 1 and vector.shape[0] == whole.shape[-1]


def _normalised(node: Any) -> Iterator[tuple[fx.Node, float]]:
    for centred, root in _two(node, "div", swapped=False):
        yield from _centred(centred, root, "sqrt")
    for centred, root in _two(node, "mul"):
        yield from _centred(centred, root, "rsqrt")


def _centred(centred: Any, root: Any, name: str) -> Iterator[tuple[fx.Node, float]]:
    if _op(root) != name or len(root.args) != 1:
        return
    for x, mean in _two(centred, "sub", swapped=False):
        for variance, eps in _two(root.args[0], "add"):
            if (
                isinstance(eps, float)
                and _is_mean(mean, x)
                and _is_variance(variance, x, centred)
                and _stays_inside(centred, root)
            ):
                yield x, eps


def _is_mean(node: Any, of: Any) -> bool:
    if _op(node) != "mean" or _argument(node, 0, "input") is not of:
        return False
    if _argument(node, 2, "keepdim", default=False) is not True:
        return False
    return _argument(node, 1, "dim", "axis") in (-1, [-1], (-1,)) and "dtype" not in node.kwargs


def _is_variance(node: Any, x: Any, centred: Any) -> bool:
    """``var(x, unbiased=False)``, or the mean of the squares of what is centred."""
    if _op(node) == "var":
        last = _argument(node, 1, "dim") in (-1, [-1], (-1,))
        biased = node.kwargs.get("unbiased", True) is False or node.kwargs.get("correction", 1) == 0
        return bool(_argument(node, 0, "input") is x and last and biased and node.kwargs.get("keepdim", False))
    if _op(node) != "mean" or not isinstance(square := _argument(node, 0, "input"), fx.Node) or not _is_mean(node, square):
        return False
    return (_op(square), square.args) in (("pow", (centred, 2)), ("square", (centred,)), ("mul", (centred, centred)))


def _stays_inside(centred: fx.Node, root: fx.Node) -> bool:
    """Nobody else needs the intermediate results."""
    return len(centred.users) <= 2 and len(root.users) == 1


# --- boxes clipped in steps -------------------------------------------------------------------------------------------


def _clip(node: fx.Node) -> Iterator[Match]:
    """Limits that follow each other become one ``clamp``."""
    outer = _limits(node)
    inner = _limits(outer[0]) if outer and isinstance(outer[0], fx.Node) and len(outer[0].users) == 1 else None
    if outer and inner:
        low, high = max(outer[1], inner[1]), min(outer[2], inner[2])
        if low <= high:
            bounds = {"min": None if low == -math.inf else low, "max": None if high == math.inf else high}
            yield torch.clamp, (inner[0],), bounds


def _limits(node: Any) -> tuple[Any, float, float] | None:
    """What is clamped, and to which numbers."""
    name = _op(node)
    if name == "clamp":
        low, high = _argument(node, 1, "min"), _argument(node, 2, "max")
    elif name == "clamp_min":
        low, high = _argument(node, 1, "min"), None
    elif name == "clamp_max":
        low, high = None, _argument(node, 1, "max")
    else:
        return None
    if any(limit is not None and not isinstance(limit, int | float) for limit in (low, high)):
        return None
    return _argument(node, 0, "input"), -math.inf if low is None else low, math.inf if high is None else high


PASSES: dict[str, Callable[[fx.Node], Iterator[Match]]] = {"ScopeLayerNormPass": _layer_norm, "ScopeClipBoxesPass": _clip}

"""Passes that are off unless named: each replaces one pattern in a captured graph by one operator.

They see graphs as Dynamo captures them, before gradients are derived: the backward pass is that of the one operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Set
from typing import Any

import torch
from torch import fx

from msctx.graph.expressions import call_of, match

Match = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""What a node is replaced by: a function and its arguments."""


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


def _meta(node: Any) -> torch.Tensor | None:
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


_CENTRED = ("sub", "x", ("mean", "x"))
_VARIANCE = [("var", "x"), ("mean", [("pow", _CENTRED, 2), ("mul", _CENTRED, _CENTRED)])]
_NORMAL = [("div", _CENTRED, ("sqrt", ("add", _VARIANCE, "eps"))), ("mul", _CENTRED, ("rsqrt", ("add", _VARIANCE, "eps")))]


def _layer_norm(node: fx.Node) -> Iterator[Match]:
    """``(x - mean) / sqrt(var + eps) * weight + bias`` over the last dimension."""
    for found in match(("add", ("mul", _NORMAL, "weight"), "bias"), node, {}):
        x, *vectors = (_meta(found[name]) for name in ("x", "weight", "bias"))
        if (
            x is not None
            and isinstance(found["eps"], float)
            and all(v is not None and v.shape == x.shape[-1:] for v in vectors)
        ):
            yield torch.nn.functional.layer_norm, (found["x"], (x.shape[-1],), found["weight"], found["bias"], found["eps"]), {}


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
    name, *args = call_of(node) or ("",)
    if name != "clamp" or not all(isinstance(limit, int | float | None) for limit in args[1:]):
        return None
    of, low, high = args
    return of, -math.inf if low is None else low, math.inf if high is None else high


PASSES: dict[str, Callable[[fx.Node], Iterator[Match]]] = {"ScopeLayerNormPass": _layer_norm, "ScopeClipBoxesPass": _clip}

"""Changes of graphs as Dynamo captures them, before gradients are derived: patterns, passes that are off unless named, a region."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from itertools import permutations
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.distributed import SubmodCompiler
from torch.fx.passes.split_module import split_module

from msctx.errors import did_you_mean
from msctx.notices import warn
from msctx.observers.module_paths import modules_around
from msctx.options.switch_values import Region

# --- expressions, also of ATen's operators, and patterns of them --------------------------------------------------------

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


# --- enable_scope_fusion_passes: each replaces one pattern by one operator ----------------------------------------------

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
        if x is None or not isinstance(found["eps"], float):
            continue
        if all(v is not None and v.shape == x.shape[-1:] for v in vectors):
            yield torch.nn.functional.layer_norm, (found["x"], (x.shape[-1],), found["weight"], found["bias"], found["eps"]), {}


def _clip(node: fx.Node) -> Iterator[Match]:
    """Limits that follow each other become one ``clamp``."""
    for found in match(("clamp", ("clamp", "x", "low", "high"), "least", "most"), node, {}):
        lows, highs = (
            [found[name] for name in names if found[name] is not None] for names in (("low", "least"), ("high", "most"))
        )
        are_numbers = all(isinstance(limit, int | float) for limit in lows + highs)
        if are_numbers and max(lows, default=-math.inf) <= min(highs, default=math.inf):
            yield torch.clamp, (found["x"],), {"min": max(lows, default=None), "max": min(highs, default=None)}


PASSES: dict[str, Callable[[fx.Node], Iterator[Match]]] = {"ScopeLayerNormPass": _layer_norm, "ScopeClipBoxesPass": _clip}


# --- in_out_pair: the region from its first to its last operators, of which one side is compiled ------------------------

Compiler = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]
BEFORE, INSIDE, AFTER = range(3)


def compile_sides(
    graph: fx.GraphModule, inputs: Sequence[Any], region: Region | None, compiler: Compiler
) -> Callable[..., Any]:
    """Compile what lies inside *region*, or outside of it; the other side runs an operator at a time, as eager code does."""
    if region is None or (ends := _ends(graph, region)) is None:
        return compiler(graph, inputs)
    place = {node: i for i, node in enumerate(graph.graph.nodes)}
    side = {node: BEFORE if i < ends[0] else INSIDE if i <= ends[1] else AFTER for node, i in place.items()}
    split = split_module(graph, None, side.__getitem__, keep_original_order=True)  # type: ignore[arg-type]
    compiled = {getattr(split, f"submod_{number}", None) for number in ((INSIDE,) if region.inside else (BEFORE, AFTER))}

    def one(part: fx.GraphModule, args: Sequence[Any]) -> Callable[..., Any]:
        return compiler(part, args) if part in compiled else part.forward

    SubmodCompiler(split, one, torch._guards.detect_fake_mode(inputs)).run(*inputs)  # type: ignore[arg-type]
    split.recompile()
    return split.forward


def _ends(graph: fx.GraphModule, region: Region) -> tuple[int, int] | None:
    """The places of its first and its last node; None, with a warning: there is no such region."""
    named: dict[str, list[int]] = {}
    for i, node in enumerate(graph.graph.nodes):
        if node.op.startswith("call_"):
            for name in {node.name, operator_of(node), *modules_around(node)} - {""}:
                named.setdefault(name, []).append(i)
    missing = [name for name in (*region.first, *region.last) if name not in named]
    if missing:
        near = did_you_mean(missing[0], list(named))
        warn(f"in_out_pair: no operator or module is named {', '.join(missing)}{near}; all is compiled")
        return None
    first = min(place for name in region.first for place in named[name])
    last = max(place for name in region.last for place in named[name])
    if first > last:
        warn(f"in_out_pair: {', '.join(region.last)} comes before {', '.join(region.first)}; all is compiled")
        return None
    return first, last


def operator_of(node: fx.Node) -> str:
    """``aten.max_pool2d.default`` → ``MaxPool2d``."""
    name = getattr(node.target, "overloadpacket", node.target)  # its name is without the overload
    name = getattr(name, "__name__", None) or str(name).rpartition(".")[2]
    return "".join(part[0].upper() + part[1:] for part in re.split(r"\W|_", name) if part) or "Operator"

"""``in_out_pair``: the region of a graph from its first to its last operators, of which one side is compiled."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.distributed import SubmodCompiler
from torch.fx.passes.split_module import split_module

from msctx.errors import did_you_mean
from msctx.notices import warn
from msctx.observers.compiled_places import modules_around
from msctx.options.policies import Region

Compiler = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]
BEFORE, INSIDE, AFTER = range(3)


def compile_sides(graph: fx.GraphModule, inputs: Sequence[Any], region: Region, compiler: Compiler) -> Callable[..., Any]:
    """Compile what lies inside *region*, or outside of it; the other side runs an operator at a time, as eager code does."""

    ends = _ends(graph, region)
    if ends is None:
        return compiler(graph, inputs)
    place = {node: i for i, node in enumerate(graph.graph.nodes)}
    side = {node: BEFORE if i < ends[0] else INSIDE if i <= ends[1] else AFTER for node, i in place.items()}
    split = split_module(graph, None, side.__getitem__, keep_original_order=True)  # type: ignore[arg-type]
    compiled = {getattr(split, f"submod_{number}", None) for number in ((INSIDE,) if region.inside else (BEFORE, AFTER))}

    def one(part: fx.GraphModule, args: Sequence[Any]) -> Callable[..., Any]:
        return compiler(part, args) if part in compiled else part.forward

    fake: Any = torch._guards.detect_fake_mode(inputs)
    SubmodCompiler(split, one, fake).run(*inputs)
    split.recompile()
    return split.forward


def _ends(graph: fx.GraphModule, region: Region) -> tuple[int, int] | None:
    """The places of its first and its last node; None, with a warning: there is no such region."""
    named: dict[str, list[int]] = {}
    for i, node in enumerate(graph.graph.nodes):
        if node.op.startswith("call_"):
            for name in _names(node):
                named.setdefault(name, []).append(i)
    missing = [name for name in (*region.first, *region.last) if name not in named]
    if missing:
        near = did_you_mean(missing[0], list(named))
        text = f"in_out_pair: no operator or module is named {', '.join(missing)}{near}; all is compiled"
        warn(text)
        return None
    first = min(place for name in region.first for place in named[name])
    last = max(place for name in region.last for place in named[name])
    if first > last:
        text = f"in_out_pair: {', '.join(region.last)} comes before {', '.join(region.first)}; all is compiled"
        warn(text)
        return None
    return first, last


def operator_of(node: fx.Node) -> str:
    """``aten.max_pool2d.default`` → ``MaxPool2d``."""
    name = getattr(node.target, "overloadpacket", node.target)  # its name is without the overload
    name = getattr(name, "__name__", None) or str(name).rpartition(".")[2]
    return "".join(part[0].upper() + part[1:] for part in re.split(r"\W|_", name) if part) or "Operator"


def _names(node: fx.Node) -> set[str]:
    """The names of a node, of its operator, and of the modules around it."""
    return {node.name, operator_of(node), *modules_around(node)} - {""}

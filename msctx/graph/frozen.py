"""Weights that compiled code holds as constants: it is compiled anew where they have changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.convert_frame import compile_lock
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv, free_symbols

from msctx.notices import warn

Compile = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]


def frozen(compile: Compile, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Compile a graph whose parameters and buffers become constants; Dynamo notices those that are replaced.

    What has changed in place is seen by a tensor's version and address at each call. Inductor freezes a graph of fixed shapes
    again; where shapes have symbols, whose conditions Dynamo has checked already, the graph runs eagerly. Buffers that the graph
    itself writes, such as statistics, are no constants: they move in every run. A parameter that moves during a run was changed by
    another thread.
    """
    weights, buffers = [*graph.parameters()], [*graph.buffers()]
    kept, held = _copy(graph), weights + buffers
    all_buffers = {*range(len(weights), len(held))}
    at = _state(held)
    made, own = compile(graph, inputs), all_buffers
    fixed = not any(_has_symbols(node) for node in kept.graph.find_nodes(op="placeholder"))

    def run(*args: Any) -> Any:
        nonlocal made, at, own
        before = _state(held)
        if _moved(at, before) - own:
            with compile_lock:
                now = _state(held)
                if _moved(at, now) - own:  # no other thread has compiled it meanwhile
                    warn(f"frozen_variable: weights have changed. {CHANGED[fixed]}")
                    made, at, own = _again(compile, kept, args) if fixed else kept.forward, now, all_buffers
        result = made(*args)
        own = own & _moved(before, _state(held))
        return result

    return run


CHANGED = {
    True: "Their code is compiled again, after each change.",
    False: "Code for several shapes that holds them runs eagerly; do not use frozen_variable where weights change.",
}


def _state(held: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    return [(value.data_ptr(), 0 if value.is_inference() else value._version) for value in held]


def _moved(before: Sequence[tuple[int, int]], after: Sequence[tuple[int, int]]) -> set[int]:
    return {place for place, (one, other) in enumerate(zip(before, after, strict=True)) if one != other}


def _copy(graph: fx.GraphModule) -> fx.GraphModule:
    """A copy that shares the parameters."""
    copied = fx.Graph()
    copied.output(copied.graph_copy(graph.graph, {}))
    return fx.GraphModule(graph, copied)


def _has_symbols(node: fx.Node) -> bool:

    value = node.meta.get("example_value")
    return isinstance(value, torch.SymInt) or (isinstance(value, torch.Tensor) and bool(free_symbols(value)))


def _again(compile: Compile, kept: fx.GraphModule, args: Sequence[Any]) -> Callable[..., Any]:

    with tracing(TracingContext(FakeTensorMode(shape_env=ShapeEnv()))):
        return compile(_copy(kept), args)

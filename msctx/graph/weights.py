"""Convolutions of compiled code read the weights of a model where they are."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

CONVOLUTION = torch.ops.aten.convolution.default
WEIGHTS = {CONVOLUTION: 1, torch.ops.aten.convolution_backward.default: 2}
"""Which argument is the weight."""


@contextmanager
def not_copied() -> Iterator[None]:
    """Inductor copies weights to channels_last in each call: for convolutions, for gradients, and as what a forward pass saves.

    A copy belongs to no module, so that no rule for one would hold; and kernels bring a weight into a form of their own. To be
    entered under Dynamo's lock, as all that torch.compile does.
    """
    from torch._inductor.graph import GraphLowering
    from torch._inductor.lowering import lowerings

    tables: Any = lowerings
    graphs: Any = GraphLowering
    before, preferring = (
        {target: tables[target] for target in WEIGHTS if target in tables},
        graphs.find_nodes_prefer_channels_last,
    )

    def preferred(graph: GraphLowering) -> Any:
        found = preferring(graph)
        return found - {node.args[1] for node in found if node.target is CONVOLUTION and _is_weight(node.args[1])}

    tables.update({target: functools.partial(_lowered, lowering, WEIGHTS[target]) for target, lowering in before.items()})
    graphs.find_nodes_prefer_channels_last = preferred
    try:
        yield
    finally:
        tables.update(before)
        graphs.find_nodes_prefer_channels_last = preferring


def _is_weight(node: Any) -> bool:
    return bool(node.op == "placeholder" and node.meta["val"].device.type == "cpu")


def _lowered(lowering: Callable[..., Any], place: int, *args: Any, **kwargs: Any) -> Any:
    from torch._inductor.ir import ExternKernel, FixedLayout

    kernels: Any = ExternKernel
    weight, require = args[place], kernels.__dict__["require_stride_order"]
    if weight.get_device().type != "cpu" or not isinstance(weight.get_layout(), FixedLayout):  # it is computed
        return lowering(*args, **kwargs)

    def required(kernel: type, value: Any, *order: Any, **more: Any) -> Any:
        return value if value is weight else require.__func__(kernel, value, *order, **more)

    kernels.require_stride_order = classmethod(required)
    try:
        return lowering(*args, **kwargs)
    finally:
        kernels.require_stride_order = require

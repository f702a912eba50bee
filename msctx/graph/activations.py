"""Activations of graphs without gradients, as inductor decomposes them."""

from __future__ import annotations

import math
from typing import Any

from torch import fx

from msctx.graph.expressions import match

ACTIVATIONS = ("none", "relu", "clamp", "silu", "sigmoid", "hardswish", "hardsigmoid", "gelu", "gelu_tanh")
"""In the order of the kernels' (kernels/include/msctx/conv.h)."""
_GATE = ("clamp", ("clamp", ("add", "x", 3), 0, None), None, 6)
_CUBE = [("mul", ("mul", "x", "x"), "x"), ("pow", "x", 3)]
_CURVE = ("tanh", ("mul", ("add", "x", ("mul", _CUBE, 0.044715)), (2 / math.pi) ** 0.5))
_PATTERNS: dict[str, Any] = {
    "relu": ("relu", "x"),
    "clamp": ("clamp", ("clamp", "x", "low", None), None, "high"),
    "silu": ("div", "x", ("add", ("exp", ("neg", "x")), 1)),
    "sigmoid": ("sigmoid", "x"),
    "hardswish": ("div", ("mul", "x", _GATE), 6),
    "hardsigmoid": ("div", _GATE, 6),
    "gelu": ("mul", ("mul", "x", 0.5), ("add", ("erf", ("mul", "x", 0.5**0.5)), 1)),
    "gelu_tanh": ("mul", ("mul", "x", 0.5), ("add", _CURVE, 1)),
}
MOST = 12
"""Operators of a pattern, and some more."""


def activation(node: fx.Node) -> tuple[str, fx.Node, float, float] | None:
    """That of *node* alone: its name, the last of its operators, and the bounds of a clamp. Nothing else needs what is in between."""
    inside, reached = {node}, {*node.users}
    while reached and len(inside) < MOST:
        last = min(reached)
        for name, pattern in _PATTERNS.items() if len(reached) == 1 else ():
            for found in match(pattern, last, {"x": node}):
                low, high = found.get("low", 0.0), found.get("high", 0.0)
                if isinstance(low, float | int) and isinstance(high, float | int) and low <= high:
                    return name, last, float(low), float(high)
        if not last.users:  # it leaves the graph
            return None
        inside.add(last)
        reached = (reached | {*last.users}) - inside
    return None

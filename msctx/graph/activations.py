"""Activations of graphs without gradients, as inductor decomposes them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten
ACTIVATIONS = ("none", "relu", "clamp", "silu", "sigmoid", "hardswish", "hardsigmoid", "gelu", "gelu_tanh")
"""In the order of the kernels' (kernels/include/msctx/conv.h)."""


def activation(node: fx.Node) -> tuple[str, fx.Node, float, float] | None:
    """That of *node* alone: its name, the last of its operators, and the bounds of a clamp."""
    last: fx.Node | None
    if len(node.users) == 1:
        (user,) = node.users
        if user.target in (aten.relu.default, aten.sigmoid.default):
            return ("relu" if user.target is aten.relu.default else "sigmoid"), user, 0.0, 0.0
        low = _only(_then(node, aten.clamp_min.default))
        last = _then(low, aten.clamp_max.default)
        if low is not None and last is not None and isinstance(least := low.args[1], float | int):
            most = last.args[1]
            return ("clamp", last, float(least), float(most)) if isinstance(most, float | int) and least <= most else None
        last = _then(_gate(node), aten.div.Tensor, 6)
        return ("hardsigmoid", last, 0.0, 0.0) if last is not None else None
    of = {
        2: {"silu": _silu, "hardswish": _hardswish, "gelu": _gelu},
        3: {"gelu_tanh": _gelu_tanh},
        4: {"gelu_tanh": _gelu_tanh},
    }
    found = ((name, find(node)) for name, find in of.get(len(node.users), {}).items())
    return next(((name, last, 0.0, 0.0) for name, last in found if last is not None), None)


def _then(node: fx.Node | None, target: Any, number: float | None = None) -> fx.Node | None:
    """The use of *node* as first argument of this operator, with this number, if that is given."""
    for user in node.users if node is not None else ():
        if user.target is target and user.args[0] is node and not user.kwargs and number in (None, user.args[-1]):
            return user
    return None


def _only(node: fx.Node | None) -> fx.Node | None:
    """*node*, if it is used once: nothing else needs it."""
    return node if node is not None and len(node.users) == 1 else None


def _gate(node: fx.Node) -> fx.Node | None:
    """clamp(node + 3, 0, 6)"""
    above = _only(_then(_only(_then(node, aten.add.Tensor, 3)), aten.clamp_min.default, 0))
    return _only(_then(above, aten.clamp_max.default, 6))


def _both(node: fx.Node | None, other: fx.Node | None, target: Any) -> fx.Node | None:
    """target(node, other), in either order."""
    (user,) = other.users if other is not None else (None,)
    if node is None or user is None or user.target is not target or user.kwargs:
        return None
    return user if {*user.args} == {node, other} else None


def _silu(node: fx.Node) -> fx.Node | None:
    """node / (exp(-node) + 1)"""
    exponential = _only(_then(_only(_then(node, aten.neg.default)), aten.exp.default))
    below = _only(_then(exponential, aten.add.Tensor, 1))
    found = _both(node, below, aten.div.Tensor)
    return found if found is not None and found.args[0] is node else None


def _hardswish(node: fx.Node) -> fx.Node | None:
    """node * gate / 6"""
    return _then(_only(_both(node, _gate(node), aten.mul.Tensor)), aten.div.Tensor, 6)


def _gelu(node: fx.Node) -> fx.Node | None:
    """0.5 * node * (erf(node / sqrt(2)) + 1)"""
    half = _only(_then(node, aten.mul.Tensor, 0.5))
    error = _only(_then(_only(_then(node, aten.mul.Tensor, 0.5**0.5)), aten.erf.default))
    return _both(half, _only(_then(error, aten.add.Tensor, 1)), aten.mul.Tensor)


def _gelu_tanh(node: fx.Node) -> fx.Node | None:
    """0.5 * node * (tanh(sqrt(2 / pi) * (node + 0.044715 * node^3)) + 1)"""
    half = _only(_then(node, aten.mul.Tensor, 0.5))
    square = next((user for user in node.users if user.target is aten.mul.Tensor and user.args == (node, node)), None)
    cube = _both(node, _only(square), aten.mul.Tensor) or _then(node, aten.pow.Tensor_Scalar, 3)
    inner = _only(_both(node, _only(_then(_only(cube), aten.mul.Tensor, 0.044715)), aten.add.Tensor))
    curve = _only(_then(_only(_then(inner, aten.mul.Tensor, (2 / math.pi) ** 0.5)), aten.tanh.default))
    return _both(half, _only(_then(curve, aten.add.Tensor, 1)), aten.mul.Tensor)

"""``enable_concat_eliminate_opt``: concatenations of what was split before, and splits of what was concatenated, go.

A batch that is computed in two halves is put together and split again between any two layers that do so.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import torch
from torch import fx

from msctx.inductor_pass import Beside

aten = torch.ops.aten


Piece = tuple[Any, int, int, int]
"""A tensor, an axis, and from where to where along it: of the tensor that it is a part of, or that is a part of it."""


class Concatenations(Beside):
    """Over a graph of aten's operators, forward or backward."""

    def apply(self, graph: fx.Graph) -> None:
        for node in [*graph.nodes]:
            if (other := _same_as(node)) is not None and _may_take_its_place(other, node):
                node.replace_all_uses_with(other)
        for node in reversed([*graph.nodes]):
            if not node.users and (
                node.target in _SPLITS or node.target in (aten.cat.default, aten.slice.Tensor, operator.getitem)
            ):
                graph.erase_node(node)


_SPLITS = (aten.split.Tensor, aten.split_with_sizes.default)


def _same_as(node: Any) -> Any:
    """An earlier node with the same values."""
    if parts := _parts(node):
        pieces = [_piece(part) for part, *_ in parts]
        whole, (_, axis, _, end) = pieces[0][0] if pieces[0] else None, parts[-1]
        is_covered = whole is not None and pieces == [(whole, *place) for _, *place in parts] and _size(whole, axis) == end
        return whole if is_covered else None
    whole, *place = _piece(node) or (None,)
    return next((part for part, *at in _parts(whole) if at == place), None)


def _parts(node: Any) -> list[Piece]:
    """What a concatenation is made of, and where it lies there."""
    if not _is_static(node) or node.target is not aten.cat.default:
        return []
    parts, rank = node.args[0], node.meta["val"].ndim
    axis = (node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)) % rank
    if not all(_is_static(part) and part.meta["val"].ndim == rank for part in parts):
        return []
    ends = accumulate(_size(part, axis) for part in parts)
    return [(part, axis, end - _size(part, axis), end) for part, end in zip(parts, ends, strict=True)]


def _piece(node: Any) -> Piece | None:
    """By the place in memory: both are views."""
    whole: Any = node.args[0] if node.target is aten.slice.Tensor else None
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node) and node.args[0].target in _SPLITS:
        whole = node.args[0].args[0]
    if not (_is_static(whole) and _is_static(node)):
        return None
    value, of = node.meta["val"], whole.meta["val"]
    axes = [axis for axis in range(of.ndim) if value.shape[axis] != of.shape[axis]]
    if len(axes) != 1 or value.stride() != of.stride() or not of.stride(axes[0]):
        return None
    start = (value.storage_offset() - of.storage_offset()) // of.stride(axes[0])
    return whole, axes[0], start, start + value.shape[axes[0]]


def _is_static(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return isinstance(value, torch.Tensor) and value.ndim > 0 and all(isinstance(size, int) for size in value.shape)


def _size(node: Any, axis: int) -> int:
    return int(node.meta["val"].shape[axis])


def _may_take_its_place(other: Any, node: Any) -> bool:
    """Where each operator can read the other's layout, and nothing that a caller gets shares memory that it did not."""
    one, value = other.meta["val"], node.meta["val"]
    if (one.dtype, one.device) != (value.dtype, value.device) or not (one.is_contiguous() or one.stride() == value.stride()):
        return False
    users = [*_through_views(node)]
    if any(user.target in _BY_STRIDES for user, _ in users):
        return False
    leaving = [(user, used) for user, used in users if user.op == "output"]
    if not leaving:
        return True
    while _is_view(other) and other.op == "call_function":
        other = other.args[0]
    if other.op == "placeholder":  # the caller's, who may write to it before the backward pass
        return False
    # what is kept for the backward pass may be shared, but not with what the caller gets
    theirs = [(user, used) for user, used in _through_views(other) if user.op == "output"]
    return not any(_is_the_callers(*one) for one in (*leaving, *theirs))


_BY_STRIDES = (aten.as_strided.default, aten.copy_.default)


def _is_the_callers(output: Any, used: Any) -> bool:
    """Whether an output of the graph is one of the program's. Inductor marks those; kept for the backward pass are what follows."""
    outputs = output.args[0] if isinstance(output.args[0], (list, tuple)) else output.args
    last = max(output.meta.get("user_visible_output_idxs") or [len(outputs)])
    return used in outputs[: last + 1]


def _is_view(node: Any) -> bool:
    returns = node.target._schema.returns if isinstance(node.target, torch._ops.OpOverload) else ()
    return node.target is operator.getitem or any(one.alias_info is not None for one in returns)


def _through_views(node: Any) -> Iterator[tuple[Any, Any]]:
    """The users of a node, and of all that may be a view of it, each with what it uses."""
    for user in node.users:
        yield user, node
        if _is_view(user):
            yield from _through_views(user)

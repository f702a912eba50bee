"""Passes of ours among inductor's, beside those of a program."""

from __future__ import annotations

import hashlib
import operator
import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import fx


@cache
def own_code() -> str:
    """A digest of the files here: what another version of them has put into torch's caches is compiled anew."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()


class Beside:
    """A pass of inductor over a graph, after those that the program has in the same place: *programs_own* returns these.

    This one leaves graphs as they are: torch's caches distinguish code by it.
    """

    def __init__(self, programs_own: Callable[[], Any]) -> None:
        self._programs_own = programs_own

    @classmethod
    def when_loaded(cls) -> None:
        """Inductor takes it for one of its passes, whose code its caches may keep."""
        from torch._inductor.custom_graph_pass import CustomGraphPass

        CustomGraphPass.register(cls)

    def apply(self, graph: Any) -> None:
        """Change a graph."""

    def _passes(self) -> tuple[Any, ...]:
        """None, one, or, since torch 2.13, several."""
        found = self._programs_own()
        return tuple(found) if isinstance(found, (list, tuple)) else () if found is None else (found,)

    def __call__(self, graph: Any) -> None:
        for one in self._passes():
            one(graph)
        self.apply(graph)

    def uuid(self) -> Any:
        """By which torch's caches distinguish the code; None, as of a pass without one: they are not requested."""
        ids = [getattr(one, "uuid", lambda: None)() for one in self._passes()]
        return None if None in ids else (type(self).__name__, own_code(), *ids)


# --- enable_concat_eliminate_opt: a batch that is computed in halves is put together and split between any two layers ---

aten = torch.ops.aten
Piece = tuple[Any, int, int, int]
"""A tensor, an axis, and from where to where along it: of the tensor that it is a part of, or that is a part of it."""


class Concatenations(Beside):
    """Over a graph of aten's operators, before what is kept for the backward pass is chosen."""

    def apply(self, graph: fx.Graph) -> None:
        for node in [*graph.nodes]:
            if (other := _same_as(node)) is not None and _may_take_its_place(other, node):
                node.replace_all_uses_with(other)
        graph.eliminate_dead_code()


_SPLITS = (aten.split.Tensor, aten.split_with_sizes.default)


def _same_as(node: Any) -> Any:
    """An earlier node with the same values."""
    if parts := _parts(node):
        pieces = [_piece(part) for part, *_ in parts]
        whole: Any = pieces[0][0] if pieces[0] else None
        (_, axis, _, end), are_all = parts[-1], pieces == [(whole, *place) for _, *place in parts]
        return whole if whole is not None and are_all and whole.meta["val"].shape[axis] == end else None
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
    sizes = [part.meta["val"].shape[axis] for part in parts]
    return [(part, axis, end - size, end) for part, size, end in zip(parts, sizes, accumulate(sizes), strict=True)]


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


def _may_take_its_place(other: Any, node: Any) -> bool:
    """Where each operator can read the other's layout, and nothing that a caller has shares memory that it did not."""
    one, value = other.meta["val"], node.meta["val"]
    if (one.dtype, one.device) != (value.dtype, value.device) or not (one.is_contiguous() or one.stride() == value.stride()):
        return False
    while _is_view(other) and other.op == "call_function":
        other = other.args[0]
    if other.op == "placeholder":  # the caller's, who may write to it before the backward pass
        return False
    users = [*_through_views(node), *_through_views(other)]
    by_strides = (aten.as_strided.default, aten.copy_.default)
    return not any(user.op == "output" or user.target in by_strides for user in users)


def _is_view(node: Any) -> bool:
    returns = node.target._schema.returns if isinstance(node.target, torch._ops.OpOverload) else ()
    return node.target is operator.getitem or any(one.alias_info is not None for one in returns)


def _through_views(node: Any) -> Iterator[Any]:
    """The users of a node, and of all that may be a view of it."""
    for user in node.users:
        yield user
        if _is_view(user):
            yield from _through_views(user)


# --- quant_dumpable: what goes into a quantisation passes an operator of ours, which a compiler cannot fuse and dumps see

QUANTIZES = re.compile(r"_?(fake_)?quantize_|_?fused_moving_avg_obs_f")
"""How the names of operators and functions begin that quantise their first argument."""


@cache
def quantized_input() -> Any:
    """Defined once it is needed: that takes some milliseconds."""
    schema = "(Tensor input) -> Tensor"
    copy = torch.library.custom_op("msctx::quantized_input", lambda input: input.clone(), mutates_args=(), schema=schema)
    copy.register_fake(torch.clone)
    copy.register_autograd(lambda ctx, gradient: gradient)
    return torch.ops.msctx.quantized_input.default


class Marking(Beside):
    """Over the graph that Dynamo made."""

    def __init__(self, programs_own: Callable[[], Any]) -> None:
        super().__init__(programs_own)
        quantized_input()  # code in inductor's caches calls it in later processes

    def apply(self, graph: Any) -> None:
        for node in [*graph.nodes]:
            name = getattr(node.target, "__name__", "")
            if node.op == "call_function" and QUANTIZES.match(name) and node.args and hasattr(node.args[0], "meta"):
                given = node.args[0]
                with graph.inserting_before(node):
                    marked = graph.call_function(quantized_input(), (given,))
                marked.meta = dict(given.meta)
                node.args = (marked, *node.args[1:])

"""Fused groups within a graph: which operators each holds, and the graph in which each is one call."""

from __future__ import annotations

import heapq
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from inspect import signature
from itertools import groupby, pairwise
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import has_free_symbols
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from msctx.options.operators import resolve

SINGLE, REDUCTIONS, COMPILED = 0, 1, 2
"""Which operators may be in a group: on single elements; reductions, too; all that inductor has code for."""
ARRANGING = frozenset(
    [
        "view",
        "reshape",
        "_unsafe_view",
        "expand",
        "unsqueeze",
        "squeeze",
        "permute",
        "transpose",
        "t",
        "alias",
        "slice",
        "select",
        "full",
        "full_like",
        "scalar_tensor",
        "iota",
        "clone",
        "lift_fresh_copy",
    ]
)
"""What computes nothing: in a group with others, but no reason for one."""
UNTOUCHED = (
    torch.Tag.nondeterministic_seeded,
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.inplace_view,
)
"""Random numbers keep their order, and their generator; sizes that depend on data are known only then."""


@dataclass(frozen=True)
class Rules:
    """Which groups are made.

    Attributes:
        part: ``SINGLE``, ``REDUCTIONS`` or ``COMPILED``.
        only, more, less: names of operators that may be in one, instead of those of *part*, beside them, and not.
        size: how many operators there may be in one; 0: any number.
        depth: how many operators in a row before a reduction; None: any number.
        beside: operators that have nothing to do with each other may be in one group.
        dynamic: also where sizes are dynamic.
        least: how many operators make a group.
    """

    part: int = COMPILED
    only: frozenset[str] | None = None
    more: frozenset[str] = frozenset()
    less: frozenset[str] = frozenset()
    size: int = 0
    depth: int | None = None
    beside: bool = True
    dynamic: bool = True
    least: int = 2

    def take(self, node: fx.Node) -> bool:
        if not _can_be_compiled(node):
            return False
        names = names_of(node)
        if names & self.less:
            return False
        if self.only is not None:
            return bool(names & self.only) or bool(names & ARRANGING)
        return bool(names & self.more) or _part(node) <= self.part


def meant(names: Sequence[str]) -> dict[str, frozenset[str]]:
    """Each name of an operator as somebody wrote it → the names that nodes have."""
    return {name: frozenset({name.removeprefix("aten.").partition(".")[0], *(resolve(name) or ())}) for name in names}


def names_of(node: fx.Node) -> frozenset[str]:
    """The names by which a node's operator may be meant."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return frozenset()
    name = node.target._overloadpacket.__name__
    return frozenset({name, "Cast"} if name in ("convert_element_type", "_to_copy") else {name})


def _can_be_compiled(node: fx.Node) -> bool:
    target = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        return False
    if target._schema.is_mutable or any(tag in target.tags for tag in UNTOUCHED):
        return False
    values = torch.utils._pytree.tree_leaves(node.meta.get("val"))
    return bool(values) and all(isinstance(value, torch.Tensor) for value in values)


def _part(node: fx.Node) -> int:
    from torch._inductor.lowering import fallbacks, lowerings

    target: Any = node.target
    if torch.Tag.pointwise in target.tags or names_of(node) & ARRANGING:
        return SINGLE
    if torch.Tag.reduction in target.tags:
        return REDUCTIONS
    return COMPILED if target in lowerings and target not in fallbacks else COMPILED + 1


class _Support(OperatorSupportBase):
    def __init__(self, rules: Rules) -> None:
        self.rules = rules

    def is_node_supported(self, submodules: Any, node: fx.Node) -> bool:
        return self.rules.take(node)


def groups_in(graph: fx.GraphModule, rules: Rules) -> list[list[fx.Node]]:
    """The nodes of each group, in the order of the graph."""
    if not rules.dynamic and _is_dynamic(graph.graph.nodes):
        return []
    by_torch = "skip_horizontal_fusion" in signature(CapabilityBasedPartitioner).parameters  # torch >= 2.13
    how: dict[str, Any] = {"skip_horizontal_fusion": not rules.beside} if by_torch else {}
    made = CapabilityBasedPartitioner(graph, _Support(rules), allows_single_node_partition=True, **how).propose_partitions()
    found: list[Any] = [partition.nodes for partition in made]
    if not by_torch and not rules.beside:
        found = [part for group in found for part in _connected(group)]
    place = {node: i for i, node in enumerate(graph.graph.nodes)}
    nodes = [sorted(group, key=place.__getitem__) for group in found]
    parts = [part for group in nodes for shallow in _by_depth(group, rules.depth) for part in _by_size(shallow, rules.size)]
    parts = _untangled(graph, parts)
    least = 1 if rules.size != 1 and rules.least == 1 else 2
    return sorted((part for part in parts if sum(map(_computes, part)) >= least), key=lambda part: place[part[0]])


def _connected(group: Iterable[fx.Node]) -> Iterator[set[fx.Node]]:
    """The parts that have nothing to do with each other."""
    left = {*group}
    while left:
        part, new = set[fx.Node](), {left.pop()}
        while new:
            part |= new
            new = {near for node in new for near in (*node.all_input_nodes, *node.users)} & left
            left -= new
        yield part


def _is_dynamic(nodes: Iterable[fx.Node]) -> bool:
    return has_free_symbols([node.meta.get("val") for node in nodes])


def _computes(node: fx.Node) -> bool:
    return node.target is not operator.getitem and not names_of(node) & ARRANGING


def _by_size(group: list[fx.Node], size: int) -> Iterator[list[fx.Node]]:
    """Pieces that follow each other, so that none waits for a later one; what picks a result stays with its operator."""
    piece: list[fx.Node] = []
    count = 0
    for node in group:
        is_more = _computes(node)
        if size and is_more and count == size:
            yield piece
            piece, count = [], 0
        piece.append(node)
        count += is_more
    yield piece


def _by_depth(group: list[fx.Node], depth: int | None) -> Iterator[list[fx.Node]]:
    """What lies more than *depth* operators before a reduction, and all that it needs, comes apart."""
    if depth is None:
        yield group
        return
    inside = {*group}
    far = dict[fx.Node, int]()  # how many operators lie between a node and the farthest reduction after it, itself counted
    for node in reversed(group):
        after = [
            far[user] + 1 if user in far else 1 for user in node.users if user in inside and (user in far or _reduces(user))
        ]
        if after:
            far[node] = max(after)
    early = [node for node in group if far.get(node, 0) > depth]
    late = [node for node in group if far.get(node, 0) <= depth]
    yield from filter(None, (early, late))


def _reduces(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.reduction in node.target.tags


# --- the graph with groups in place of their nodes --------------------------------------------------------------------

Compile = Callable[[fx.GraphModule, list[Any]], Callable[[list[Any]], Any]]


def fuse(graph: fx.GraphModule, groups: Sequence[list[fx.Node]], compile: Compile) -> fx.GraphModule:
    """The graph in which each group is one call of what *compile* makes of it."""
    made, env = fx.Graph(), dict[fx.Node, fx.Node]()
    sizes = [node for node in graph.graph.nodes if node.op == "placeholder" and isinstance(node.meta.get("val"), torch.SymInt)]
    grouped = {group[0] for group in groups}
    for unit in _in_order(graph, groups):
        if unit[0] not in grouped:
            env[unit[0]] = made.node_copy(unit[0], env.__getitem__)
            continue
        part, inputs, outputs = _alone(graph, unit, sizes)
        call = made.call_function(
            _named(compile(part, [node.meta["val"] for node in inputs]), len(env)), tuple(env[n] for n in inputs)
        )
        for i, node in enumerate(outputs):
            env[node] = made.call_function(operator.getitem, (call, i))
            env[node].meta["val"] = node.meta["val"]
    made.lint()
    return fx.GraphModule(graph, made)


def _named(compiled: Callable[[list[Any]], Any], number: int) -> Callable[..., Any]:
    def fused(*args: Any) -> Any:
        return compiled([*args])

    fused.__name__ = f"fused_{number}"  # the name of the node, and in the code of the graph
    return fused


def _in_order(graph: fx.GraphModule, groups: Sequence[list[fx.Node]]) -> Iterator[list[fx.Node]]:
    """Groups and nodes that stay, after all that they need, in the order of the graph where they can choose."""
    units, order = _units(graph, groups)
    order.prepare()
    ready = list[int]()
    while order.is_active():
        for number in order.get_ready():
            heapq.heappush(ready, number)
        yield units[number := heapq.heappop(ready)]
        order.done(number)


def _units(graph: fx.GraphModule, groups: Sequence[list[fx.Node]]) -> tuple[dict[int, list[fx.Node]], TopologicalSorter[int]]:
    """What becomes one node each, by the place of its last node, and which of them needs which.

    What writes into a tensor stands after all else in graphs of AOTAutograd, and so it does here; what draws random numbers keeps its
    order.
    """
    place = {node: i for i, node in enumerate(graph.graph.nodes)}
    units = {place[group[-1]]: group for group in groups}
    of = {node: number for number, group in units.items() for node in group}
    for node, number in place.items():
        if node not in of:
            of[node], units[number] = number, [node]
    needs = {number: {of[arg] for node in unit for arg in node.all_input_nodes} - {number} for number, unit in units.items()}
    for before, after in pairwise(place[node] for node in place if _is_ordered(node)):
        needs[after].add(before)
    return units, TopologicalSorter(needs)


def _untangled(graph: fx.GraphModule, groups: list[list[fx.Node]]) -> list[list[fx.Node]]:
    """The groups, those divided that could only run both before and after random numbers, which keep their order."""
    drawn, count = dict[fx.Node, int](), 0
    for node in graph.graph.nodes:  # what picks a result stays with its operator
        drawn[node] = drawn[node.args[0]] if node.target is operator.getitem else count
        count += _is_ordered(node)
    while True:
        units, order = _units(graph, groups)
        try:
            order.prepare()
        except CycleError as error:
            group = next(units[n] for n in error.args[1] if len({drawn[node] for node in units[n]}) > 1)
            pieces = groupby(sorted(group, key=drawn.__getitem__), drawn.__getitem__)
            groups = [*(other for other in groups if other is not group), *([*piece] for _, piece in pieces)]
        else:
            return groups


def _is_ordered(node: fx.Node) -> bool:
    target = node.target
    if node.op != "call_function":
        return False
    if not isinstance(target, torch._ops.OpOverload):
        return isinstance(target, torch._ops.HigherOrderOperator)
    return target._schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags


def _alone(
    graph: fx.GraphModule, group: list[fx.Node], sizes: list[fx.Node]
) -> tuple[fx.GraphModule, list[fx.Node], list[fx.Node]]:
    """A group as a graph of its own, the nodes that are its inputs, and those that are its outputs."""
    inside = {*group}
    outer = dict.fromkeys(arg for node in group for arg in node.all_input_nodes if arg not in inside)
    inputs = [node for node in outer if node.op != "get_attr"]
    if _is_dynamic([*group, *inputs]):  # sizes that no input has as they are
        inputs = [*dict.fromkeys([*sizes, *inputs])]
    outputs = [node for node in group if any(user not in inside for user in node.users)]
    part, env = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in inputs:
        env[node] = part.placeholder(node.name)
        env[node].meta = dict(node.meta)
    for node in (*(node for node in outer if node.op == "get_attr"), *group):
        env[node] = part.node_copy(node, env.__getitem__)
    result = part.output(tuple(env[node] for node in outputs))
    result.meta["user_visible_output_idxs"] = list(range(len(outputs)))  # what follows expects the strides of the graph
    return fx.GraphModule(graph, part), inputs, outputs

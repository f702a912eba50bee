"""``enable_begin_end_inline_opt``: the first and the last call of a nested region become part of the graph around."""

from __future__ import annotations

from collections import defaultdict
from operator import attrgetter
from typing import Any

import torch
from torch import fx

from msctx.inductor_pass import Beside


class Ends(Beside):
    """Over a graph of aten's operators in which calls of ``torch.compiler.nested_compile_region`` are graphs of their own."""

    def apply(self, graph: fx.Graph) -> None:
        calls: defaultdict[str, list[fx.Node]] = defaultdict(list)
        for node in graph.nodes:
            if node.target is torch.ops.higher_order.invoke_subgraph:
                calls[_called(node).code].append(node)
        for same in calls.values():
            for node in {same[0]: None, same[-1]: None}:
                _inline(graph, node)


def _called(node: fx.Node) -> fx.GraphModule:
    found: Any = node.graph.owning_module.get_submodule(str(node.args[0].target))  # type: ignore[union-attr]
    return found  # type: ignore[no-any-return]


def _inline(graph: fx.Graph, node: fx.Node) -> None:
    called, given = _called(node), iter(node.args[2:])
    inside: dict[fx.Node, Any] = {}
    made: Any = ()
    with graph.inserting_before(node):
        for one in called.graph.nodes:
            if one.op == "placeholder":
                inside[one] = next(given)
            elif one.op == "output":
                made = fx.map_arg(one.args[0], lambda n: inside[n])
            else:
                inside[one] = graph.node_copy(one, lambda n: inside[n])
                if one.op == "get_attr":
                    inside[one].target = _constant(graph, node, called, one.target)
    for user in [*node.users]:  # getitem: no other one takes a tuple
        if user.users:
            user.replace_all_uses_with(made[user.args[1]])
        graph.erase_node(user)
    name: Any = node.args[0]
    graph.erase_node(node)
    if not name.users:
        graph.erase_node(name)


def _constant(graph: fx.Graph, node: fx.Node, called: fx.GraphModule, name: str) -> str:
    """An attribute of the called graph, as one of the graph around."""
    new = f"{node.name}_{name.replace('.', '_')}"
    setattr(graph.owning_module, new, attrgetter(name)(called))
    return new

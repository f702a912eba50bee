"""Draws graphs of torch.fx as text of Graphviz's ``.dot`` language, which needs no library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from torch import fx

from msctx.graph.ir import graphs_in, inner_graph, operator_of, scope_of, type_of


class _Look(NamedTuple):
    title: str
    shape: str
    colour: str


_LOOKS = {
    "placeholder": _Look("", "ellipse", "#dbeafe"),
    "get_attr": _Look("GetAttr", "note", "#fef3c7"),
    "output": _Look("Return", "ellipse", "#dcfce7"),
}


def dot_text(gm: fx.GraphModule, name: str, *, classes: bool) -> str:
    """*gm* and the graphs in it, each in a frame of its own; *name*, *classes*: as for :func:`msctx.graph.ir.ir_text`."""
    names = graphs_in(gm, name)
    ids = {node: f"node_{number}_{place}" for number, one in enumerate(names) for place, node in enumerate(one.graph.nodes)}
    lines = [f"digraph {_quoted(name)} {{", "  compound=true", '  node [fontname="Courier New", style=filled]']
    for number, (one, title) in enumerate(names.items()):
        lines += [f"  subgraph cluster_{number} {{", f"    label={_quoted(title)}"]
        lines += [f"    {ids[node]} [{_look(node, classes)}]" for node in one.graph.nodes]
        lines.append("  }")
    lines += [line for one in names for line in _edges(one, names, ids)]
    return "\n".join([*lines, "}", ""])


def _look(node: fx.Node, classes: bool) -> str:
    title, shape, colour = _LOOKS.get(node.op) or _Look(operator_of(node), "box", "#f8fafc")
    kind = type_of(node).strip("<>") if node.op != "output" else ""
    scope = "/".join(scope_of(node, classes=classes)) if node.op not in ("placeholder", "output") else ""
    label = "\n".join(filter(None, (title, node.name, kind, scope)))
    return f'label={_quoted(label)}, shape={shape}, fillcolor="{colour}"'


def _edges(gm: fx.GraphModule, names: Mapping[fx.GraphModule, str], ids: Mapping[fx.Node, str]) -> Iterator[str]:
    """An edge for each node that another is given, and a broken one to each graph that it means."""
    clusters = [*names]
    for node in gm.graph.nodes:
        for given in node.all_input_nodes:
            yield f"  {ids[given]} -> {ids[node]}"
        inner = inner_graph(gm, node)
        if inner is not None:
            first = next(iter(inner.graph.nodes))
            yield f"  {ids[node]} -> {ids[first]} [style=dashed, lhead=cluster_{clusters.index(inner)}]"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'

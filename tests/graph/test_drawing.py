"""The .dot files: valid text of Graphviz with each node and each edge."""

import shutil
import subprocess

import dot_reader
import pytest
import torch
from fx_graphs import Net, graphs, graphs_of
from hypothesis import given, settings
from torch import fx

from msctx.graph.drawing import dot_text
from msctx.graph.ir import graphs_in


def agree(gm: fx.GraphModule, drawing: dot_reader.Drawing) -> None:
    found = [*graphs_in(gm, "main").items()]
    nodes = [node for one, _ in found for node in one.graph.nodes]
    ids = dict(zip(nodes, drawing.nodes, strict=True))
    assert [*drawing.labels.values()] == [name for _, name in found]
    for node, label in zip(nodes, (look["label"] for look in drawing.nodes.values()), strict=True):
        assert node.name in label.split("\n")
    edges = [(ids[given], ids[node]) for node in nodes for given in node.all_input_nodes]
    assert [(a, b) for a, b, look in drawing.edges if not look] == edges


def test_every_graph_of_a_training_step_is_drawn() -> None:
    for gm in graphs_of(Net(), torch.randn(2, 3, 8, 8), backward=True).values():
        agree(gm, dot_reader.read(dot_text(gm, "main", classes=True)))


def test_a_label_holds_operator_type_and_module() -> None:
    gm = graphs_of(Net(), torch.randn(2, 3, 8, 8))["forward"]
    labels = [look["label"] for look in dot_reader.read(dot_text(gm, "main", classes=True)).nodes.values()]
    assert "Convolution\nconvolution\nTensor[Float32], (2, 8, 6, 6)\nDefault/conv-Conv2d" in labels
    without = [look["label"] for look in dot_reader.read(dot_text(gm, "main", classes=False)).nodes.values()]
    assert "Convolution\nconvolution\nTensor[Float32], (2, 8, 6, 6)\nDefault/conv" in without


def test_inner_graphs_have_frames_and_are_pointed_at() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    drawing = dot_reader.read(dot_text(graphs_of(function, torch.randn(2))["dynamo"], "main", classes=True))
    assert [*drawing.clusters] == ["cluster_0", "cluster_1", "cluster_2"]
    assert [look["lhead"] for _, _, look in drawing.edges if look] == ["cluster_1", "cluster_2"]


@settings(max_examples=100)
@given(graphs())
def test_any_graph_is_drawn(gm: fx.GraphModule) -> None:
    agree(gm, dot_reader.read(dot_text(gm, "main", classes=True)))


def test_a_name_with_quotes_is_quoted() -> None:
    gm = graphs_of(Net(), torch.randn(2, 3, 8, 8))["dynamo"]
    assert dot_reader.read(dot_text(gm, 'a "name"\\', classes=True)).name == 'a "name"\\'


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not here")
def test_graphviz_takes_it() -> None:
    for gm in graphs_of(Net(), torch.randn(2, 3, 8, 8), backward=True).values():
        text = dot_text(gm, "main", classes=True)
        assert "<svg" in subprocess.run(["dot", "-Tsvg"], input=text, capture_output=True, text=True, check=True).stdout

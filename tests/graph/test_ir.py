"""The .ir files: each graph that torch makes, as a reader of the grammar finds it."""

from collections import Counter
from pathlib import Path
from typing import Any

import fx_graphs
import ir_reader
import pytest
import torch
from fx_graphs import CONSTANTS, Inner, Net, graphs, graphs_of
from hypothesis import given, settings
from ir_reader import Ref, Value
from torch import fx, nn

from msctx.graph.ir import ir_text, scope_of


def read(gm: fx.GraphModule, *, classes: bool = True) -> ir_reader.File:
    return ir_reader.read(ir_text(gm, "main", classes=classes))


def agree(gm: fx.GraphModule, graph: ir_reader.Subgraph, entry: ir_reader.File | None = None) -> None:
    """Each node of *gm* is in *graph* exactly once, with the nodes that it is given."""
    parameters = [*entry.parameters] if entry else graph.parameters
    nodes = [node for node in gm.graph.nodes if node.op not in ("placeholder", "output")]
    assert [node.name for node in graph.nodes] == [node.name for node in nodes]
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    assert [name.partition("_")[2] for name in parameters] == [node.name for node in placeholders]
    places = dict(zip(placeholders, parameters, strict=True))
    places |= {node: found.place for node, found in zip(nodes, graph.nodes, strict=True)}
    for node, found in zip(nodes, graph.nodes, strict=True):
        assert Counter(refs(found.given) + refs(found.named)) == Counter(
            places[one] for one in flat((node.args, node.kwargs)) if isinstance(one, fx.Node)
        )
    (output,) = (node for node in gm.graph.nodes if node.op == "output")
    assert refs(graph.returned) == [places[one] for one in flat(output.args) if isinstance(one, fx.Node)]


def flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [leaf for one in value for leaf in flat(one)]
    if isinstance(value, dict):
        return flat([*value.values()])
    return flat([value.start, value.stop, value.step]) if isinstance(value, slice) else [value]


def refs(value: Any) -> list[str]:
    if isinstance(value, Value):
        return refs([*value.given, *(one for _, one in value.named)])
    return [one.to for one in flat(value) if isinstance(one, Ref) and one.to.startswith("%")] + [
        name for one in flat(value) if isinstance(one, Value) for name in refs(one)
    ]


# --- graphs of torch.compile ------------------------------------------------------------------------------------------


def test_every_graph_of_a_training_step_is_read_back() -> None:
    found = graphs_of(Net(), torch.randn(2, 3, 8, 8), backward=True)
    assert set(found) == {"dynamo", "forward", "backward"}
    for gm in found.values():
        file = read(gm)
        assert file.counts[0] == len(gm.graph.nodes)
        agree(gm, file.subgraphs["main"], file)


def test_parameters_have_their_types_and_where_dynamo_found_them() -> None:
    file = read(graphs_of(Net(), torch.randn(2, 3, 8, 8))["dynamo"])
    assert "<Ref[Tensor[Float32]], (8, 3, 3, 3), ref_key=conv.weight>" in file.parameters.values()
    assert "<Ref[Tensor[Float32]], (8), ref_key=net.layers.1.bias>" in file.parameters.values()
    assert "<Tensor[Float32], (2, 3, 8, 8)>" in file.parameters.values()


def test_a_node_has_its_types_operator_module_and_line() -> None:
    (node,) = (n for n in read(graphs_of(Net(), torch.randn(2, 3, 8, 8))["forward"]).nodes if "Convolution" in n.function)
    assert (node.function, node.attrs) == ("PrimFunc_Convolution", {"target": "aten.convolution.default"})
    assert node.types[:2] == ["<Tensor[Float32], (2, 3, 8, 8)>", "<Tensor[Float32], (8, 3, 3, 3)>"]
    assert node.made == ["<Tensor[Float32], (2, 8, 6, 6)>"]
    assert node.scope == "Default/conv-Conv2d/Convolution-op0"
    ((file, line, code),) = node.lines
    assert (file, code) == (fx_graphs.__file__, "pooled = self.conv(x).mean((2, 3))")
    assert code in Path(file).read_text(encoding="utf-8").splitlines()[line - 1]


def test_all_lines_that_lead_to_a_node_stand_there_the_outermost_first() -> None:
    (node, _) = (n for n in read(graphs_of(Net(), torch.randn(2, 3, 8, 8))["dynamo"]).nodes if "Relu" in n.function)
    assert [code for _, _, code in node.lines] == ["result: torch.Tensor = self.net(pooled)", "x = torch.relu(layer(x))"]


def test_scopes_carry_classes_where_they_are_to() -> None:
    gm = graphs_of(Net(), torch.randn(2, 3, 8, 8))["dynamo"]
    with_classes = [node.scope for node in read(gm).nodes]
    without = [node.scope for node in read(gm, classes=False).nodes]
    assert "Default/net-Inner/layers/1-Linear/Linear-op1" in with_classes
    assert "Default/net/layers/1/Linear-op1" in without
    assert not [scope for scope in without if "-" in scope.rpartition("/")[0]]


def test_a_backward_pass_names_the_modules_of_its_forward_pass() -> None:
    scopes = [node.scope for node in read(graphs_of(Net(), torch.randn(2, 3, 8, 8), backward=True)["backward"]).nodes]
    assert "Gradients/Default/conv-Conv2d/ConvolutionBackward-op0" in scopes


@pytest.mark.parametrize(
    ("path", "scope"),
    [
        ("L['self'].conv", ["Default", "conv-Linear"]),
        ("L['me'].conv", ["Default", "conv-Linear"]),
        ("L['self']._modules['layers'].0", ["Default", "layers/0-Linear"]),
        ("L['self'].d.a b", ["Default", "d/a_b-Linear"]),
        ("L['self'].layers[0]", ["Default", "layers/0-Linear"]),
    ],
)
def test_names_of_dynamo_become_paths(path: str, scope: list[str]) -> None:
    node = fx.Graph().placeholder("x")
    node.meta["nn_module_stack"] = {"1": (path, nn.Linear)}
    assert scope_of(node, classes=True) == scope


def test_a_module_that_a_function_calls_keeps_its_name() -> None:
    node = fx.Graph().placeholder("x")
    node.meta["nn_module_stack"] = {"1": ("G['net']", Net), "2": ("G['net'].conv", "torch.nn.modules.conv.Conv2d")}
    assert scope_of(node, classes=True) == ["Default", "net-Net", "conv-Conv2d"]


def test_symbolic_sizes() -> None:
    file = read(graphs_of(Net(), torch.randn(2, 3, 8, 8), dynamic=True)["forward"])
    sizes = [kind for kind in file.parameters.values() if kind.startswith("<Int64, NoShape, value=s")]
    (name,) = (kind.removeprefix("<Int64, NoShape, value=").rstrip(">") for kind in sizes[:1])
    assert f"<Tensor[Float32], ({name}, 3, " in " ".join(file.parameters.values())
    assert [node for node in file.nodes if " - 2, " in node.made[0]], "the convolution's result"


def test_what_an_operator_with_several_results_makes() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        values, places = torch.max(x, 1)
        return values + places

    file = read(graphs_of(function, torch.randn(2, 3))["forward"])
    (node,) = (n for n in file.nodes if n.function == "PrimFunc_Max")
    assert node.made == ["<Tuple[Tensor[Float32], Tensor[Int64]], TupleShape((2), (2))>"]


def test_subgraphs_of_higher_order_operators() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos(), (x,))

    for name, gm in graphs_of(function, torch.randn(2, 3)).items():
        file = read(gm)
        assert len(file.subgraphs) == 3, name
        inner = {found.target: getattr(gm, found.target) for found in gm.graph.nodes if found.op == "get_attr"}
        partials = [node for node in file.nodes if node.function == "Partial"]
        assert len(partials) == len(inner) == 2
        for node, graph in zip(partials, inner.values(), strict=True):
            agree(graph, file.subgraphs[node.given[0].to.removeprefix("@")])
        assert file.counts[0] == len(gm.graph.nodes) + sum(len(graph.graph.nodes) for graph in inner.values())


def test_an_inner_graph_that_is_called() -> None:
    inner = fx.symbolic_trace(Inner())
    outer = fx.Graph()
    outer.output(outer.call_module("inner", (outer.placeholder("x"),)))
    (node,) = read(fx.GraphModule({"inner": inner}, outer)).subgraphs["main"].nodes
    assert (node.function, node.given) == ("call", [Ref("@main_inner"), Ref("%para1_x")])


def test_a_tensor_in_the_graph() -> None:
    graph = fx.Graph()
    graph.output(graph.get_attr("weight"))
    gm = fx.GraphModule({"weight": nn.Parameter(torch.ones(2, 3, dtype=torch.bfloat16))}, graph)
    (node,) = read(gm).nodes
    assert (node.function, node.given) == ("GetAttr", ["weight"])
    assert node.made == ["<Ref[Tensor[BFloat16]], (2, 3), ref_key=weight>"]


def test_two_graphs_of_one_name_are_told_apart() -> None:
    graph, inner = fx.Graph(), fx.symbolic_trace(Inner())
    graph.output((graph.get_attr("a.b"), graph.get_attr("a_b")))
    root = nn.Module()
    root.a, root.a_b = nn.Module(), fx.symbolic_trace(nn.ReLU())
    root.a.b = inner
    file = read(fx.GraphModule(root, graph))
    assert len(file.subgraphs) == 3


def test_attributes_stand_in_the_head() -> None:
    gm = fx.symbolic_trace(nn.ReLU())
    assert ir_reader.read(ir_text(gm, "main", classes=True, attrs={"compile_id": "0/0", "pass": "a\nb"})).attrs == {
        "compile_id": "0/0",
        "pass": "a b",
    }


# --- any graph --------------------------------------------------------------------------------------------------------


FOUND = (
    *(
        None,
        Value("Bool", (1,)),
        Value("I64", (-3,)),
        Value("F64", (0.1,)),
        Value("F64", (1e-30,)),
        Value("F64", (float("inf"),)),
    ),
    *('a "quoted"\nname, (x', Value("Float32"), Value("UInt8"), Value("device", ("cpu",))),
    *(Value("memory_format", ("torch.contiguous_format",)), ...),
)


@pytest.mark.parametrize(("value", "found"), [*zip(CONSTANTS, FOUND, strict=True)])
def test_constants(value: Any, found: Any) -> None:
    graph = fx.Graph()
    graph.output(graph.call_function(torch.add, (value,), {"key": [value]}))
    (node,) = read(fx.GraphModule(nn.Module(), graph)).nodes
    assert (node.given, node.named) == ([found], {"key": [found]})


@settings(max_examples=200)
@given(graphs())
def test_each_node_of_any_graph_appears_exactly_once(gm: fx.GraphModule) -> None:
    file = read(gm)
    agree(gm, file.subgraphs["main"], file)

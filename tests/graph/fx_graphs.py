"""Graphs of torch.fx: what torch makes of models, and any others."""

import operator
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from torch import fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.net = Inner()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled = self.conv(x).mean((2, 3))
        result: torch.Tensor = self.net(pooled)
        return result


def graphs_of(function: Callable[..., Any], *args: Any, dynamic: bool | None = None, backward: bool = False) -> dict[str, Any]:
    """What Dynamo captures and AOTAutograd makes of a call."""
    found: dict[str, fx.GraphModule] = {}

    def keep(name: str) -> Callable[[fx.GraphModule, Any], Any]:
        def compiler(gm: fx.GraphModule, inputs: Any) -> Any:
            found[name] = gm
            return make_boxed_func(gm.forward)

        return compiler

    def backend(gm: fx.GraphModule, inputs: Any) -> Any:
        found["dynamo"] = gm
        return aot_autograd(fw_compiler=keep("forward"), bw_compiler=keep("backward"))(gm, inputs)

    result = torch.compile(function, backend=backend, dynamic=dynamic)(*args)
    if backward:
        result.sum().backward()
    return found


CONSTANTS = (
    *(None, True, -3, 0.1, 1e-30, float("inf"), 'a "quoted"\nname, (x', torch.float32, torch.uint8, torch.device("cpu")),
    *(torch.contiguous_format, ...),
)


def _add(kind: str, nodes: list[fx.Node], args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
    graph = nodes[0].graph
    if kind == "function":
        return graph.call_function(torch.ops.aten.max_pool2d_with_indices.default, args, kwargs)
    if kind == "getitem":
        return graph.call_function(operator.getitem, (nodes[0], args))
    if kind == "method":
        return graph.call_method("add_", (nodes[0], *args), kwargs)
    return graph.call_module("part", args, kwargs) if kind == "module" else graph.get_attr("weight")


@st.composite
def graphs(draw: st.DrawFn) -> fx.GraphModule:
    """Nodes of every kind, given earlier nodes and constants in any nesting."""
    graph, root = fx.Graph(), nn.Module()
    root.weight, root.part = nn.Parameter(torch.ones(2)), nn.Linear(2, 2)
    nodes = [graph.placeholder(name) for name in ("x", "y", "weight")[: draw(st.integers(1, 3))]]

    def values() -> st.SearchStrategy[Any]:
        leaves = st.one_of(st.sampled_from(nodes), st.sampled_from(CONSTANTS), st.integers(), st.text())
        return st.recursive(
            leaves,
            lambda inner: st.one_of(
                st.lists(inner, max_size=3),
                st.lists(inner, max_size=3).map(tuple),
                st.dictionaries(st.text(max_size=4), inner, max_size=2),
                st.builds(slice, inner, inner, inner) if draw(st.booleans()) else inner,
            ),
            max_leaves=6,
        )

    for _ in range(draw(st.integers(1, 6))):
        args = tuple(draw(st.lists(values(), max_size=3)))
        kwargs = draw(st.dictionaries(st.sampled_from(("dim", "alpha")), values(), max_size=2))
        nodes.append(_add(draw(st.sampled_from(("function", "getitem", "method", "module", "attribute"))), nodes, args, kwargs))
    graph.output(draw(values()))
    return fx.GraphModule(root, graph)

"""enable_begin_end_inline_opt: of the calls of a nested region, the first and the last are compiled into the graph around."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch

import msctx
from msctx.graph.ends import Ends

OPTION = "parallel_speed_up_json_path.enable_begin_end_inline_opt"
invoke = torch.ops.higher_order.invoke_subgraph


def stages(calls: int) -> torch.fx.GraphModule:
    """So many micro-batches through one stage, which multiplies by a constant and returns its input, too."""
    inner, root, called = torch.fx.Graph(), torch.nn.Module(), torch.nn.Module()
    x = inner.placeholder("x")
    inner.output((inner.call_function(torch.mul, (x, inner.get_attr("scale"))), x))
    called.register_buffer("scale", torch.tensor(3.0))
    root.stage = torch.fx.GraphModule(called, inner)
    graph = torch.fx.Graph(root)
    given, region = graph.placeholder("given"), graph.get_attr("stage")
    made = []
    for number in range(calls):
        part = graph.call_function(torch.select, (given, 0, number))
        call = graph.call_function(invoke, (region, "stage", part))
        made += [graph.call_function(operator.getitem, (call, place)) for place in (0, 1)]
    graph.output(tuple(made))
    return torch.fx.GraphModule(root, graph)


@pytest.mark.parametrize(("calls", "left"), [(4, 2), (3, 1), (2, 0), (1, 0)])
def test_the_ends_are_inlined(calls: int, left: int) -> None:
    whole = stages(calls)
    Ends(lambda: None)(whole.graph)
    whole.graph.lint()
    assert sum(node.target is invoke for node in whole.graph.nodes) == left
    if not left:
        assert all(node.target != "stage" for node in whole.graph.nodes)
        whole.recompile()
        x = torch.randn(calls, 2)
        found = whole(x)
        assert all(torch.equal(found[2 * n], x[n] * 3) and torch.equal(found[2 * n + 1], x[n]) for n in range(calls))


def test_a_graph_without_regions_stays() -> None:
    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    before = str(graph.graph)
    Ends(lambda: None)(graph.graph)
    assert str(graph.graph) == before


@pytest.mark.full
def test_compiled_micro_batches(request: pytest.FixtureRequest) -> None:
    from torch._inductor import config
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class Look(CustomGraphPass):
        def __call__(self, graph: torch.fx.Graph) -> None:
            if any(node.target is torch.ops.aten.cat.default for node in graph.nodes):  # that around
                seen.append(sum(node.target is invoke for node in graph.nodes))

        def uuid(self) -> None:
            return None

    @torch.compiler.nested_compile_region
    def stage(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).relu()

    def batch(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.cat([stage(part, w) for part in x.chunk(4)]).square().sum()

    request.addfinalizer(torch._dynamo.reset)
    x, w = torch.randn(8, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
    expected = torch.autograd.grad(batch(x, w), (x, w))
    compiled: Any = torch.compile(batch)
    with config.patch(post_grad_custom_post_pass=Look()):
        for value, number in ((None, 4), (True, 2), (False, 4)):
            seen: list[int] = []
            with msctx.context(**({} if value is None else {OPTION: value})):
                found = torch.autograd.grad(compiled(x, w), (x, w))
                with torch.no_grad():
                    torch.testing.assert_close(compiled(x, w), batch(x, w))
            torch.testing.assert_close(found, expected)
            assert seen == [number] * 3, "forward, backward, and without gradients"
    assert config.joint_custom_pre_pass is None

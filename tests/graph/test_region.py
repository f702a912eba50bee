"""``in_out_pair``: which operators the compiler sees."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from graph_programs import EAGER_GRAPHS, Net, image

import msctx
from msctx.graph.pre_grad_passes import operator_of

ALL = {"Conv2d", "Add", "BatchNorm", "Relu", "Mean", "Linear"}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    from torch._dynamo.backends import debugging

    found: set[str] = set()
    compiler = debugging.aot_eager

    def noted(graph: torch.fx.GraphModule, inputs: Any, **how: Any) -> Any:
        found.update(operator_of(node) for node in graph.graph.nodes if node.op.startswith("call_"))
        return compiler(graph, inputs, **how)

    monkeypatch.setattr(debugging, "aot_eager", noted)
    return found


def region(pair: str, *, inside: bool = True) -> Any:
    session = {"in_out_pair": pair, "in_out_pair_flag": inside, "mix_compile_mode": True}
    return msctx.context(**EAGER_GRAPHS, session=session)


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ("[['conv'], ['norm']]", {"Conv2d", "Add", "BatchNorm"}),
        ("[['Relu'], ['fc']]", {"Relu", "Mean", "Linear"}),
        ("[['norm'], ['norm']]", {"Add", "BatchNorm"}),
    ],
)
def test_the_two_sides_complement_each_other(seen: set[str], pair: str, expected: set[str]) -> None:
    net = Net()
    eager = deepcopy(net)
    eager(image()).sum().backward()
    for inside, names in ((True, expected), (False, ALL - expected)):
        seen.clear()
        own = deepcopy(net)
        with region(pair, inside=inside):
            own(image()).sum().backward()
        assert seen == names
        for one, other in zip(own.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize(
    ("pair", "text"), [("[['cnv'], ['fc']]", r"is named cnv.*conv"), ("[['fc'], ['conv']]", "conv comes before fc")]
)
def test_a_region_that_is_not_there_is_reported(seen: set[str], pair: str, text: str) -> None:
    with region(pair), pytest.warns(msctx.MsctxWarning, match=text):
        Net()(image())
    assert seen == ALL

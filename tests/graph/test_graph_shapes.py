"""Gears, ranges and sizes of any kind: how often Dynamo compiles, and what is refused."""

from typing import Any

import pytest
import torch
from graph_programs import EAGER_GRAPHS, Net, graphs, image
from torch import nn

import msctx

GEARS = {"input_shape": "x:-1,3,-1,6", "dynamic_dims": "2,6;4,6;4,8", "dynamic_node_type": 1}


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        result: torch.Tensor = torch.relu(self.fc(x)) * scale
        return result


def test_each_gear_is_compiled_once() -> None:
    net = Net().eval()
    expected = net(image(4, 3, 8, 6))
    with msctx.context(session=GEARS, **EAGER_GRAPHS):
        net(image(2, 3, 6, 6)).sum().backward()
        assert graphs() == 1
        for _ in range(2):
            torch.testing.assert_close(net(image(4, 3, 8, 6)), expected)
        net(image(4, 3, 6, 6))
    assert graphs() == 3


def test_a_shape_that_is_no_gear_is_refused_with_the_gears() -> None:
    with msctx.context(session=GEARS, **EAGER_GRAPHS), pytest.raises(msctx.GraphError) as caught:
        Net()(image(3, 3, 6, 6))
    text = str(caught.value)
    assert "Net is called with x:3,3,6,6" in text
    assert [line.strip() for line in text.splitlines()[1:]] == ["x:2,3,6,6", "x:4,3,6,6", "x:4,3,8,6"]
    other = msctx.context(session=GEARS | {"input_shape": "data:-1,3,-1,6"}, **EAGER_GRAPHS)
    with other, pytest.raises(msctx.GraphError, match="names data, and Net is called with no such tensors"):
        Net()(image())


def test_without_names_inputs_have_their_order() -> None:
    gears = GEARS | {"input_shape": "data:-1,3,-1,6", "dynamic_node_type": 0}
    with msctx.context(session=gears, **EAGER_GRAPHS) as ctx:
        Net()(x=image())
    assert graphs() == 1
    assert {row.status for row in ctx.plan.rows if row.option == "dynamic_node_type"} == {"approximated"}


@pytest.mark.parametrize(("dynamic", "expected"), [(True, 1), (False, 2)])
def test_compile_dynamic_mode(dynamic: bool, expected: int) -> None:
    with msctx.context(session={"compile_dynamic_mode": dynamic}, **EAGER_GRAPHS):
        net = Rows()
        net(image(5, 3))
        net(image(6, 3))
    assert graphs() == expected


def ranges(text: str, **more: Any) -> dict[str, Any]:
    return {"dynamic_input": True, "dynamic_inputs_shape_range": text} | more


def test_inside_its_range_a_size_is_not_compiled_again() -> None:
    net, inputs = Rows(), [image(rows, 3) for rows in (4, 5, 9)]
    expected = [net(one) for one in inputs]
    with msctx.context(session=ranges("data:[2~9,3]"), **EAGER_GRAPHS):
        torch.testing.assert_close([net(one) for one in inputs], expected)
    assert graphs() == 1
    assert not any(map(vars, inputs)), "inputs are left as they were"


@pytest.mark.parametrize("shape", [(10, 3), (4, 2), (4, 3, 1)])
def test_outside_its_range_a_size_is_refused(shape: tuple[int, ...]) -> None:
    with msctx.context(session=ranges("data:[2~9,3]"), **EAGER_GRAPHS), pytest.raises(msctx.GraphError, match="2~9, 3"):
        Rows()(image(*shape))
    assert graphs() == 0


def test_lazy_recompile_compiles_each_size() -> None:
    with msctx.context(session=ranges("data:[2~9,3]", dynamic_graph_execute_mode="lazy_recompile"), **EAGER_GRAPHS):
        net = Rows()
        for rows in (4, 5, 9, 4):
            net(image(rows, 3))
    assert graphs() == 3


def test_mixed_computing_may_be_forbidden() -> None:
    class Asks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if x.sum() > 0 else x - 1

    with msctx.context(session={"mix_compile_mode": True}, **EAGER_GRAPHS):
        Asks()(torch.ones(2))
    with msctx.context(session={"mix_compile_mode": False}, **EAGER_GRAPHS), pytest.raises(msctx.GraphError, match="branching"):
        Asks()(torch.ones(2))


@pytest.mark.parametrize("node_type", [0, 1])
def test_the_loss_of_a_training_loop_has_no_gears(node_type: int) -> None:
    class Model(Rows):
        def forward(self, input: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return super().forward(input)

    gears = {"input_shape": "input:-1,3", "dynamic_dims": "2;4", "dynamic_node_type": node_type}
    with msctx.context(session=gears, **EAGER_GRAPHS):
        nn.CrossEntropyLoss()(Model()(image(4, 3)), torch.tensor([0, 1, 0, 1])).backward()
        with pytest.raises(msctx.GraphError):
            Model()(image(3, 3))
    with msctx.context(session=ranges("data:[2~9,3]"), **EAGER_GRAPHS):
        nn.CrossEntropyLoss()(Model()(image(4, 3)), torch.tensor([0, 1, 0, 1])).backward()

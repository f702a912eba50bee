"""Gears, ranges and sizes of any kind: how often Dynamo compiles, and what is refused."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from graph_programs import EAGER_GRAPHS, Looping, Net, Talking, graphs, image
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


def test_gears_are_compiled_at_the_first_call_and_none_later() -> None:
    net = Net()
    before = net.norm.running_mean.clone()
    expected = net.eval()(image(4, 3, 8, 6))
    net.train()
    with msctx.context(session=GEARS, **EAGER_GRAPHS):
        net(image(2, 3, 6, 6)).sum().backward()
        assert graphs() == 3
        assert net.norm.num_batches_tracked == 1, "what is compiled ahead does not run"
        assert not torch.equal(net.norm.running_mean, before)
        net(image(4, 3, 8, 6)).sum().backward()
        net(image(4, 3, 6, 6))
        assert graphs() == 3
        net.norm.running_mean.copy_(before)
        net.norm.running_var.fill_(1)
        net.eval()
        torch.testing.assert_close(net(image(4, 3, 8, 6)), expected)


def test_a_reset_of_dynamo_drops_the_gears_which_are_compiled_anew() -> None:
    class Own(Rows):
        """Its gears are compiled here first."""

    net = Own()
    with msctx.context(session=rows(1), **EAGER_GRAPHS):
        net(image(2, 3))
        first = graphs()
        torch._dynamo.reset()
        net(image(2, 3))
        assert graphs() == 2 * first > 2
        net(image(4, 3))
        assert graphs() == 2 * first


def test_where_the_program_has_compiled_code_run_eagerly_no_gear_is_compiled_ahead() -> None:
    class Counts(Rows):
        runs = 0

        def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
            self.runs += 1
            return super().forward(x, scale)

    net = Counts()
    with msctx.context(session=rows(1), **EAGER_GRAPHS):
        with torch.compiler.set_stance("force_eager"):
            net(image(2, 3))
            net(image(2, 3))
        assert net.runs == 2
        assert graphs() == 0


def test_a_shape_that_is_no_gear_is_refused_with_the_gears() -> None:
    with msctx.context(session=GEARS, **EAGER_GRAPHS), pytest.raises(msctx.GraphError) as caught:
        Net()(image(3, 3, 6, 6))
    text = str(caught.value)
    assert "Net is called with x:3,3,6,6" in text
    assert [line.strip() for line in text.splitlines()[1:]] == ["x:2,3,6,6", "x:4,3,6,6", "x:4,3,8,6"]
    other = msctx.context(session=GEARS | {"input_shape": "data:-1,3,-1,6"}, **EAGER_GRAPHS)
    with (
        other,
        pytest.raises(msctx.GraphError, match="names data, and Net is called with no such tensors"),
    ):
        Net()(image())


def test_without_names_inputs_have_their_order() -> None:
    gears = GEARS | {"input_shape": "data:-1,3,-1,6", "dynamic_node_type": 0}
    with msctx.context(session=gears, **EAGER_GRAPHS) as ctx:
        Net()(x=image())
    assert graphs() == 3
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


def test_more_ranges_than_tensors_are_refused() -> None:
    two = ranges("data:[2~9,3],[3]")
    with (
        msctx.context(session=two, **EAGER_GRAPHS),
        pytest.raises(msctx.GraphError, match="shape_range has shapes of 2 inputs, and Rows is called with fewer tensors: 1"),
    ):
        Rows()(image(4, 3), 2.0)
    assert graphs() == 0


def test_lazy_recompile_compiles_each_size() -> None:
    with msctx.context(session=ranges("data:[2~9,3]", dynamic_graph_execute_mode="lazy_recompile"), **EAGER_GRAPHS):
        net = Rows()
        for rows in (4, 5, 9, 4):
            net(image(rows, 3))
    assert graphs() == 3


def test_functions_have_gears_too() -> None:
    @msctx.jit
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    with msctx.context(session=GEARS, enable_graph_kernel=False):
        torch.testing.assert_close(double(image(4, 3, 8, 6)), image(4, 3, 8, 6) * 2)
        with pytest.raises(msctx.GraphError):
            double(image(1, 3, 6, 6))
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


def test_inputs_of_a_range_can_be_compiled_elsewhere() -> None:
    x = image(4, 3)
    with msctx.context(session=ranges("data:[2~9,3]"), **EAGER_GRAPHS):
        Rows()(x)
    assert vars(x) == {}
    with msctx.context(**EAGER_GRAPHS):
        Rows()(x)


def test_compiling_ahead_runs_nothing_of_what_cannot_be_captured(capsys: pytest.CaptureFixture[str]) -> None:
    gears = {"input_shape": "x:-1,3", "dynamic_dims": "2;4", "dynamic_node_type": 1}
    net = Talking()
    with msctx.context(session=gears, **EAGER_GRAPHS), pytest.warns(msctx.MsctxWarning, match="dynamic_dims: .*as a whole"):
        net(image(2, 3))
    assert capsys.readouterr().out == "here\n", "once, for the call that was made"


def rows(node_type: int = 1, dims: str = "2;4") -> dict[str, Any]:
    return {"input_shape": "x:-1,3", "dynamic_dims": dims, "dynamic_node_type": node_type}


@pytest.mark.parametrize("options", [rows(0), rows(1), ranges("data:[2~9,3]")])
def test_containers_in_a_model_that_is_given_up_have_any_shape(options: dict[str, Any]) -> None:
    class Two(Looping):
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.narrow = nn.Sequential(nn.Linear(3, 5)), nn.Sequential(nn.Linear(5, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(2):
                x = self.narrow(self.wide(x))
                print("here")
            return x

    net, x = Two(), image(4, 3)
    expected = net(x)
    with msctx.context(session=options, **EAGER_GRAPHS):
        torch.testing.assert_close(net(x), expected)


def test_what_has_no_name_of_its_own_has_gears_too() -> None:
    scaled = msctx.jit(partial(torch.mul, other=3))
    with msctx.context(session=rows(0), enable_graph_kernel=False):
        torch.testing.assert_close(scaled(image(4, 3)), image(4, 3) * 3)
        with pytest.raises(msctx.GraphError, match="partial is called with"):
            scaled(image(3, 3))


@pytest.mark.parametrize("syntax", ["LAX", "STRICT"])
def test_a_gear_that_the_program_cannot_take_is_a_warning(syntax: str) -> None:
    net, x = Rows(), image(4, 3)
    gears = {"input_shape": "x:-1,-1", "dynamic_dims": "2,5;4,3", "dynamic_node_type": 1}
    told = pytest.warns(msctx.MsctxWarning, match=r"dynamic_dims: Rows cannot be compiled for x:2,5: .*\(.*shapes.py:\d+\)")
    with msctx.context(session=gears, jit_syntax_level=syntax, **EAGER_GRAPHS), told:
        assert net(x).shape == (4, 2)


def test_gears_are_compiled_for_the_memory_format_of_the_input() -> None:
    class Own(Net):
        """Its gears are compiled here first."""

    net = Own().eval()
    with msctx.context(session=GEARS, **EAGER_GRAPHS):
        for shape in ((2, 3, 6, 6), (4, 3, 8, 6)):
            net(image(*shape).to(memory_format=torch.channels_last))
    assert graphs() == 3


def test_one_tensor_may_be_two_inputs() -> None:
    @msctx.jit
    def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.sum() + y.sum()

    gears = {"input_shape": "x:-1;y:-1", "dynamic_dims": "2,2;4,3", "dynamic_node_type": 1}
    x = image(2)
    with msctx.context(session=gears, enable_graph_kernel=False):
        added(x, y=x)
        assert graphs() == 2
        torch.testing.assert_close(added(torch.ones(4), y=torch.ones(3)), torch.tensor(7.0))
    assert graphs() == 2


def test_marks_of_the_program_are_as_they_were() -> None:
    x = image(4, 3)
    torch._dynamo.mark_dynamic(x, 0)
    before = deepcopy(vars(x))
    with msctx.context(session=ranges("data:[2~9,2~9]"), **EAGER_GRAPHS):
        nn.Sequential(nn.ReLU(), nn.PReLU())(x)
    assert vars(x) == before

"""Operators of compiled code have the module that is compiled and the line of the call."""

from pathlib import Path

import pytest
import torch
from dumped_programs import overflows
from torch import nn

pytestmark = pytest.mark.usefixtures("afresh")


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x)).sin()  # type: ignore[no-any-return]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(Layer(), Layer())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x).cos()


@pytest.mark.parametrize(("inner", "name"), [("", "Net (root)"), ("body.1", "body.1")])
def test_in_graph_mode_an_operator_has_the_outermost_module_that_is_called(inner: str, name: str, tmp_path: Path) -> None:
    net = Net()
    with torch.no_grad():
        net.body[1].second.weight.fill_(3e38)
        net.body[1].second.bias.fill_(3e38)
        net.body[1].first.bias.fill_(1e10)
    called = net.get_submodule(inner)

    def run() -> None:
        called(torch.ones(3, 4))

    (report,) = overflows(run, tmp_path, net=net, mode="GRAPH_MODE")
    line = f"test_compiled_places.py:{run.__code__.co_firstlineno + 1}"
    assert f"aten::addmm in module {name}, forward pass, {line}: " in report


def test_in_the_backward_pass_of_graph_mode_it_has_those_of_the_call(tmp_path: Path) -> None:
    net = Net()
    with torch.no_grad():
        net.body[1].second.weight.fill_(3e38)
        net.body[1].second.bias.fill_(1.0)
        for parameter in net.body[1].first.parameters():  # the forward pass is finite
            parameter.zero_()

    def run() -> None:
        result = net(torch.zeros(3, 4))
        result.backward(torch.full((3, 4), 1e30))

    (report, *_) = overflows(run, tmp_path, net=net, mode="GRAPH_MODE")
    line = f"test_compiled_places.py:{run.__code__.co_firstlineno + 1}"
    assert f" in module Net (root), backward pass (CompiledFunctionBackward), {line}: " in report


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_code_that_the_program_compiles_has_the_line_of_its_function(backend: str, tmp_path: Path) -> None:
    net = nn.Linear(4, 4)

    def function(x: torch.Tensor) -> object:
        return net(x)

    compiled = torch.compile(function, backend=backend)
    with torch.no_grad():
        net.weight.fill_(3e38)
    (report, *_) = overflows(lambda: compiled(torch.full((3, 4), 1e10)), tmp_path, net=net)
    assert f", test_compiled_places.py:{function.__code__.co_firstlineno}: " in report

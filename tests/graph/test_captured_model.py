"""One walk over a model in place of Dynamo's guards on its parts: whatever changes, results are those of eager code."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from graph_programs import EAGER_GRAPHS
from torch import nn

import msctx
from msctx.graph import captured_model, graph_mode
from msctx.native import core

STEADY = EAGER_GRAPHS | {"conv_fprop_algo": "normal", "frozen_weights": True}


class Plain:
    factor = 1


class Net(nn.Module):
    shift, scale = 0.0, 0.5

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.0))
        self.norm = nn.BatchNorm1d(4)
        self.last = nn.Linear(4, 4)
        self.tied = self.last
        self.scale, self.sizes, self.plain = 2.0, (1, 4), Plain()
        self.factors, self.names, self.unregistered = [3, 1], {"a": 1}, [nn.Tanh()]
        self.nothing = None

    def forward(self, x: torch.Tensor, *, extra: torch.Tensor | None = None) -> torch.Tensor:
        x = self.tied(self.last(self.norm(self.first(x)))) * self.scale * self.factors[0] + self.names["a"] + self.shift
        x = x.reshape(-1, self.sizes[1]) * self.plain.factor
        if self.nothing is not None:
            x = x + self.nothing
        return self.unregistered[0](x) if extra is None else x @ extra.t()


def model() -> Net:
    return Net().eval()


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The guards on parts of the model that Dynamo checks, of each capture without the others."""
    found: list[list[str]] = []
    kept = captured_model.Models.kept

    def noted(self: captured_model.Models, guards: Sequence[Any]) -> list[bool]:
        choice = kept(self, guards)
        stay = [one for one, stays in zip(guards, choice, strict=True) if stays and one.guard_type != "DUPLICATE_INPUT"]
        found.append([one.name for one in stay if captured_model.MODULE in one.name])
        return choice

    monkeypatch.setattr(captured_model.Models, "kept", noted)
    graph_mode.forget()
    return found


def eager(net: nn.Module, x: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
    with msctx.context(mode="PYNATIVE_MODE"):
        return net(x, **more)  # type: ignore[no-any-return]


def add_hook(part: nn.Module) -> None:
    part.register_forward_hook(lambda module, args, result: result + 1)


def replaced_with_hook(net: Net) -> None:
    add_hook(part := nn.ReLU())
    net.first[1] = part


def swapped(net: Net) -> None:
    net.first._modules["0"], net.norm = nn.Sequential(nn.Linear(3, 4), nn.Sigmoid()), nn.BatchNorm1d(4).eval()


def doubled(net: Net) -> None:
    net.double()
    net.float()
    net.last.double()
    net.last.register_forward_pre_hook(lambda module, args: (args[0].double(),))


def exchanged_class(net: Net) -> None:
    net.first[1].__class__ = nn.Sigmoid


def other_dictionary(net: Net) -> None:
    net.__dict__ = net.__dict__ | {"scale": 5.0}


CHANGES: dict[str, Callable[[Net], Any]] = {
    "number": lambda net: setattr(net, "scale", 3.0),
    "number of another type": lambda net: setattr(net, "scale", 2),
    "tuple": lambda net: setattr(net, "sizes", (1, 2)),
    "nothing": lambda net: setattr(net, "nothing", 7.0),
    "attribute in place of a class's": lambda net: setattr(net, "shift", 5.0),
    "attribute of a class": lambda net: setattr(Net, "shift", 5.0),
    "attribute that is gone": lambda net: delattr(net, "scale"),
    "list in place": lambda net: net.factors.__setitem__(0, 9),
    "dictionary in place": lambda net: net.names.update(a=9),
    "object in place": lambda net: setattr(net.plain, "factor", 9),
    "module in a list": lambda net: net.unregistered.__setitem__(0, nn.Sigmoid()),
    "dictionary of attributes": other_dictionary,
    "part": lambda net: net.first.__setitem__(1, nn.Sigmoid()),
    "part with a hook": replaced_with_hook,
    "more parts": lambda net: net.first.append(nn.Sigmoid()),
    "fewer parts": lambda net: net.first.__delitem__(1),
    "parts of other structure": swapped,
    "class of a part": exchanged_class,
    "hook": lambda net: add_hook(net.first[1]),
    "hook of the model": add_hook,
    "forward of a part": lambda net: setattr(net.first[1], "forward", torch.sin),
    "mode": lambda net: net.train(),
    "mode of a part": lambda net: net.norm.train(),
    "tied weights": lambda net: setattr(net, "tied", nn.Linear(4, 4)),
    "weight": lambda net: setattr(net.last, "weight", nn.Parameter(torch.ones(4, 4))),
    "weight of another shape": lambda net: setattr(net.first[0], "bias", nn.Parameter(torch.ones(1))),
    "weight in place": lambda net: net.last.weight.data.fill_(3),
    "data of another dtype": doubled,
    "data of another shape": lambda net: setattr(net.last.bias, "data", torch.ones(4, 1)[:, 0].expand(4)),
    "no bias": lambda net: setattr(net.last, "bias", None),
    "buffer": lambda net: setattr(net.norm, "running_mean", torch.full((4,), 3.0)),
}


@pytest.fixture
def _class_as_it_was() -> Any:
    yield
    Net.shift = 0.0


@pytest.mark.usefixtures("_class_as_it_was")
@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_changes_computes_what_eager_code_does(change: str, kept: list[list[str]]) -> None:
    x, net, twin = torch.randn(5, 3), model(), model()
    with torch.no_grad():
        first = twin(x)
        with msctx.context(**STEADY) as ctx:
            for _ in range(2):
                torch.testing.assert_close(net(x), first)
        for one in (net, twin):
            torch.manual_seed(1)
            CHANGES[change](one)
        with ctx:
            for size in (5, 3, 5):
                torch.testing.assert_close(net(x[:size]), eager(twin, x[:size]))
    assert len(kept) <= 3
    objects = "plain", "factors", "names", "unregistered", "type("
    assert [name for name in kept[0] if not any(one in name for one in objects)] == []


def renamed(net: Net) -> None:
    net.__dict__ = {{"sizes": "size"}.get(name, name): value for name, value in vars(net).items()}


SEEN: dict[str, Callable[[Net], Any]] = {
    "name": renamed,
    "last attribute": lambda net: delattr(net, "nothing"),
    "one more": lambda net: setattr(net, "more", None),
    "shape": lambda net: setattr(net.last.bias, "data", torch.ones(1)),
    "strides": lambda net: setattr(net.last.weight, "data", torch.ones(4, 4).t()),
    "dtype": lambda net: setattr(net.last.weight, "data", torch.ones(4, 4).half()),
    "requires_grad": lambda net: net.last.weight.requires_grad_(False),
    "gone": lambda net: delattr(net, "first"),
}


@pytest.mark.parametrize("change", SEEN)
def test_the_walk_sees(change: str) -> None:
    core.load()
    net = model()
    found = captured_model.CapturedModel(net, 0)
    net.last.weight.data.zero_()
    assert found.holds()
    SEEN[change](net)
    assert not found.holds()


def test_the_walk_is_for_one_mode_of_a_thread() -> None:
    core.load()
    found = captured_model.CapturedModel(net := model(), 0)
    with torch.inference_mode():
        assert not found.holds()
    assert found.holds()
    del net


def test_a_model_that_its_capture_changes_keeps_its_guards(kept: list[list[str]]) -> None:
    net, x = nn.Sequential(nn.LazyLinear(4), nn.ReLU()), torch.ones(2, 3)
    with torch.no_grad(), msctx.context(**STEADY):
        for _ in range(3):
            torch.testing.assert_close(net(x), eager(net, x))


def test_numbers_that_take_the_place_of_others_in_memory_are_seen() -> None:
    net, x = model(), torch.randn(5, 3)
    with torch.no_grad(), msctx.context(**STEADY):
        net(x)
        for step in range(12):
            net.scale = 0.125 * step
            torch.testing.assert_close(net(x), eager(net, x))


def test_models_that_are_alike_share_their_code_and_others_say_why_they_have_their_own() -> None:
    x, other = torch.randn(5, 3), model()
    other.first[1] = nn.Sigmoid()
    with torch.no_grad(), msctx.context(**STEADY) as ctx:
        for net in [model() for _ in range(3)] + [other, model()]:
            torch.testing.assert_close(net(x), eager(net, x))
    assert [bool(row.recompiled) for row in ctx.graphs()] == [False, True]
    assert "not as it was" in ctx.graphs()[1].recompiled


def test_a_weight_that_is_an_argument_as_well_is_no_other_tensor(kept: list[list[str]]) -> None:
    net, x = model(), torch.ones(5, 3)
    with torch.no_grad(), msctx.context(**STEADY):
        for extra in (torch.randn(2, 4), net.last.weight):
            torch.testing.assert_close(net(x, extra=extra), eager(net, x, extra=extra))
    assert len(kept) == 1


def test_models_and_their_classes_are_freed() -> None:
    class Own(Net): ...

    net = Own().eval()
    with torch.no_grad(), msctx.context(**STEADY):
        net(torch.ones(2, 3))
    gone = [weakref.ref(one) for one in (net, net.last, net.last.weight)]
    del net
    gc.collect()
    assert [one() for one in gone] == [None, None, None]


@pytest.mark.parametrize("how", [{"frozen_weights": False}, {"conv_fprop_algo": "normal"}])
def test_with_gradients_or_without_frozen_weights_dynamo_checks_all(how: dict[str, Any], kept: list[list[str]]) -> None:
    net = model()
    with torch.set_grad_enabled("frozen_weights" not in how), msctx.context(**STEADY | how):
        net(torch.ones(2, 3))
    assert not kept

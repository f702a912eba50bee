"""An operator has the module of the watched model that it runs in: by its path, in compiled code too, and not in copies."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import msctx
from msctx.observers import operator_events

X = torch.ones(2, 4)
Seen = Callable[[Callable[[], object]], list[tuple[str, str]]]


@pytest.fixture
def seen(collected: Any) -> Seen:
    """The operators and their modules."""
    return lambda run: [(operator_events.kind_of(row["operator"]), row["module"]) for row in collected(run, outputs=1)]


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


class Breaks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inside(x)
        torch._dynamo.graph_break()
        return x.relu()


def test_modules_around_a_graph_break_have_their_names(seen: Seen, afresh: None) -> None:
    model, graphs = nn.Sequential(Breaks(), Breaks()), set()
    compiled = torch.compile(model, backend="eager")
    for _ in range(3):
        with msctx.context().watch(model):
            assert seen(lambda: compiled(X)) == [("addmm", "0"), ("relu", "0"), ("addmm", "1"), ("relu", "1")]
        graphs.add(counters["stats"]["unique_graphs"])
    assert len(graphs) == 1


def test_a_module_of_two_models_has_one_of_its_names_while_either_is_watched(seen: Seen) -> None:
    part = net()
    whole, other = nn.Sequential(nn.Identity(), part), nn.Sequential(part[0])

    def run() -> None:
        with msctx.context().watch(other):
            part(X)
        part(X)

    with msctx.context().watch(part):
        assert seen(lambda: part(X)) == [("addmm", "0"), ("addmm", "1")]
        with msctx.context().watch(whole):
            assert seen(run) == [("addmm", "0"), ("addmm", "1")] * 2
    with msctx.context().watch(whole):
        assert seen(lambda: part(X)) == [("addmm", "1.0"), ("addmm", "1.1")]


class Own(nn.Module):
    """Has operators of its own, beside those of its modules."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).exp()


def test_a_models_own_operators_have_the_name_of_its_class_or_its_path_in_another(seen: Seen) -> None:
    model = Own()
    with msctx.context().watch(model):
        found = dict(seen(lambda: (X.neg(), model(X).sum().backward())))
        assert (found["neg"], found["addmm"], found["exp"]) == ("", "inner", "Own (root)")
        assert found["mul"] == "Own (root)", "in the backward pass"
        outer = nn.Sequential(model)
        with msctx.context().watch(outer):
            assert seen(lambda: outer(X)) == [("addmm", "inner"), ("exp", "0")]


def test_a_module_that_is_replaced_is_looked_for_from_the_next_entry_on(seen: Seen) -> None:
    model, ctx = net(), msctx.context()
    old = model[0]
    with ctx.watch(model):
        assert seen(lambda: model(X)) == [("addmm", "0"), ("addmm", "1")]
        model[0] = nn.Linear(4, 4)
        assert seen(lambda: model(X)) == [("addmm", "Sequential (root)"), ("addmm", "1")]
    with ctx:
        assert seen(lambda: (model(X), old(X))) == [("addmm", "0"), ("addmm", "1"), ("addmm", "")]


def test_copies_have_no_names(seen: Seen) -> None:
    """An encoder's layer is computed by one operator, as long as no module in it has a hook."""
    model = nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)).eval()
    with msctx.context().watch(model), torch.no_grad():
        found = seen(lambda: (copy.deepcopy(model)(X[None]), model(X[None])))
    assert [module for kind, module in found if kind == "_transformer_encoder_layer_fwd"] == ["", "0"]

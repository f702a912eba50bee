"""The names of modules: which model they are of, in compiled code, in copies."""

import copy
from collections.abc import Iterator

import pytest
import torch
from listeners import TESTED, Listens
from torch import nn
from torch._dynamo.utils import counters

import msctx
from msctx.observers import collector, modules

X = torch.ones(2, 4)


def listening() -> Listens:
    TESTED.load(reader := Listens(outputs=1))
    return reader


def ended(reader: Listens) -> list[tuple[str, str]]:
    """The operators and their modules."""
    TESTED.load(None)
    return [(collector.kind_of(row["operator"]), row["module"]) for row in reader.rows]


@pytest.fixture(autouse=True)
def nobody_reads() -> Iterator[None]:
    yield
    TESTED.load(None)


def seen(*models: nn.Module) -> list[str]:
    """The modules of their operators."""
    reader = listening()
    for model in models:
        model(X)
    return [module for _, module in ended(reader)]


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


@pytest.mark.parametrize("is_called_outside", [True, False])
def test_compiled_code_is_kept_from_entry_to_entry(is_called_outside: bool) -> None:
    torch._dynamo.reset()
    counters.clear()
    model, graphs = net(), set()
    compiled = torch.compile(model, backend="eager")
    for _ in range(12):
        with msctx.context(op_timeout=100).watch(model):
            compiled(X)
        if is_called_outside:
            compiled(X)
        graphs.add(counters["stats"]["unique_graphs"])
    assert graphs == {1 + is_called_outside}
    torch._dynamo.reset()


def test_in_graph_mode_the_module_that_is_compiled_has_its_name() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    with msctx.context(mode="GRAPH_MODE").watch(model):
        model[0](X)
        reader = listening()
        model[0](X)
        assert {module.partition(".")[0] for _, module in ended(reader)} == {"0"}


def test_modules_around_a_graph_break_have_their_names() -> None:
    class Breaks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.inside(x)
            torch._dynamo.graph_break()
            return x.relu()

    torch._dynamo.reset()
    counters.clear()
    model, graphs = nn.Sequential(Breaks(), Breaks()), set()
    compiled = torch.compile(model, backend="eager")
    for _ in range(3):
        with msctx.context().watch(model):
            reader = listening()
            compiled(X)
            assert ended(reader) == [("addmm", "0"), ("relu", "0"), ("addmm", "1"), ("relu", "1")]
        graphs.add(counters["stats"]["unique_graphs"])
    assert len(graphs) == 1
    torch._dynamo.reset()


def test_a_module_of_two_models() -> None:
    """It has one of its names while either is watched."""
    part = net()
    whole, other = nn.Sequential(nn.Identity(), part), nn.Sequential(part[0])
    with msctx.context().watch(part):
        assert seen(part) == ["0", "1"]
        with msctx.context().watch(whole):
            reader = listening()
            with msctx.context().watch(other):
                part(X)
            part(X)
            assert ended(reader) == [("addmm", "0"), ("addmm", "1")] * 2
    with msctx.context().watch(whole):
        assert seen(part) == ["1.0", "1.1"]


class Own(nn.Module):
    """Has operators of its own, beside those of its modules."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).exp()


def test_a_models_own_operators_have_the_name_of_its_class() -> None:
    model = Own()
    with msctx.context().watch(model):
        reader = listening()
        X.neg()
        model(X).sum().backward()
        found = dict(ended(reader))
    assert (found["neg"], found["addmm"], found["exp"]) == ("", "inner", "Own (root)")
    assert found["mul"] == "Own (root)", "in the backward pass"


def test_a_model_that_is_a_module_of_another_has_its_path() -> None:
    inner = Own()
    outer = nn.Sequential(inner)
    with msctx.context().watch(inner), msctx.context().watch(outer):
        reader = listening()
        outer(X)
        assert ended(reader) == [("addmm", "inner"), ("exp", "0")]


def test_a_module_that_is_replaced_is_looked_for_from_the_next_entry_on() -> None:
    model, ctx = net(), msctx.context()
    old = model[0]
    with ctx.watch(model):
        assert seen(model) == ["0", "1"]
        model[0] = nn.Linear(4, 4)
        assert seen(model) == ["Sequential (root)", "1"]
    with ctx:
        assert seen(model, old) == ["0", "1", ""]


def test_copies_have_no_names() -> None:
    """An encoder's layer is computed by one operator, as long as no module in it has a hook."""
    model = nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)).eval()
    with msctx.context().watch(model), torch.no_grad():
        reader = listening()
        copy.deepcopy(model)(X[None])
        model(X[None])
        found = ended(reader)
    assert [module for kind, module in found if kind == "_transformer_encoder_layer_fwd"] == ["", "0"]


def test_with_and_without_classes() -> None:
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(1, 1)]), "fc": nn.Sequential(nn.ReLU())})
    with msctx.context().watch(model):
        assert modules.parts("fc.0") == ["Default", "fc-Sequential", "0-ReLU"]
        assert modules.parts("layers.0") == ["Default", "layers", "0-Linear"], "nobody calls a ModuleList"
        with msctx.context(reserve_class_name_in_scope=False):
            assert modules.parts("fc.0") == ["Default", "fc", "0"]
        assert modules.parts("") == ["Default"]
        assert modules.parts("unknown") == ["Default", "unknown"]

"""memory_optimize_level="O1": blocks of watched models are computed again in the backward pass."""

from __future__ import annotations

import copy
import inspect
import pickle
import random
from collections.abc import Callable
from itertools import combinations, pairwise
from typing import Any

import pytest
import torch
from torch import nn
from trained_blocks import Perceptron, Residual, X, network, rows, same, stack, train

import msctx
from msctx.errors import MsctxWarning
from msctx.memory.budget import NOT_CALLED
from msctx.memory.recompute import WHOLE, best_cuts, blocks

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_left_in_the_pool")


def test_the_same_bits_in_less_memory() -> None:
    """Without a cap everything is recomputed; random numbers and buffers are as they would have been."""
    plain, before = train(network())
    again, after = train(model := network(), memory_optimize_level="O1")
    assert same(plain, again)
    assert max(after[1:]) < 0.7 * max(before[1:])
    assert {(row["recomputed"], row["reason"]) for row in rows(model)} == {(True, "there is no cap, and O1 puts memory first")}


def test_keyword_arguments_several_results_and_no_gradients() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = Residual(16)

        def forward(self, x: torch.Tensor, *, scale: float) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            return self.one(x, scale=scale), {"more": x * scale}

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.layers = nn.Conv2d(3, 16, 3), nn.ModuleList([Pair(), Pair()])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x, total = self.stem(x), torch.zeros(())
            for layer in self.layers:
                x, found = layer(x, scale=0.5)
                total = total + found["more"].sum()
            return x + total

    def made() -> nn.Module:
        torch.manual_seed(0)
        return Model()

    assert same(train(made())[0], train(made(), memory_optimize_level="O1")[0])
    model = made().eval()
    with msctx.context(memory_optimize_level="O1") as ctx, torch.no_grad():
        ctx.watch(model)
        inside = model(X)
    with torch.no_grad():
        assert torch.equal(inside, model(X))


def test_inputs_in_dictionaries_and_models_on_meta() -> None:
    class OfDictionary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Perceptron(64) for _ in range(3)])

        def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            x = batch["x"]
            for layer in self.layers:
                x = layer(x)
            return x

    model = OfDictionary()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with msctx.context(memory_optimize_level="O1", max_device_memory="1GB") as ctx:
        ctx.watch(model)
        for _ in range(5):
            model({"x": torch.randn(4, 64)}).sum().backward()
            optimizer.step()
        assert [row["recomputed"] for row in rows(model)] == [False] * 3
        ctx.watch(ghost := stack(2, 8).to("meta"))
        for _ in range(3):
            ghost(torch.randn(2, 8, device="meta")).sum().backward()


def test_modules_copies_pickles_and_traces_are_as_ever() -> None:
    model = network(2)
    plain = network(2)
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(model)
        assert [repr(type(module)) for module in model.modules()] == [repr(type(module)) for module in plain.modules()]
        assert [{*vars(module)} for module in model.modules()] == [{*vars(module)} for module in plain.modules()]
        assert inspect.signature(model[1][0].forward) == inspect.signature(plain[1][0].forward)
        twin = copy.deepcopy(model)
        thawed = pickle.loads(pickle.dumps(nn.Sequential(nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8)))))
        assert type(thawed[0]) is nn.Sequential
        twin(X).sum().backward()
        assert model[0].weight.grad is None, "a copy computes with its own weights"
        traced = torch.fx.symbolic_trace(nn.Sequential(nn.Sequential(nn.Linear(2, 2))))
        assert [node.op for node in traced.graph.nodes] == ["placeholder", "call_module", "output"]
        ctx.watch(layers := nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Sequential(nn.Linear(2, 2))))
        x = torch.randn(3, 2)
        assert torch.equal(torch.jit.trace(layers, x)(x), layers(x))
    assert nn.Module.__call__.__qualname__ == "Module._wrapped_call_impl"
    assert "msctx" not in nn.Module.__call__.__module__


def test_what_somebody_else_has_put_around_calls_of_modules_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.Module, "__call__", found := nn.Module.__call__)  # puts it back in the end
    seen = []
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(model := nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU())))
        ours = nn.Module.__call__

        def theirs(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            seen.append(type(self))
            return ours(self, *args, **kwargs)

        monkeypatch.setattr(nn.Module, "__call__", theirs)
    assert nn.Module.__call__ is theirs
    loss = model(torch.ones(1, 2)).sum()
    assert nn.Linear in seen
    assert "Checkpoint" not in str(torch.autograd.graph._get_grad_fn_or_grad_acc(loss)), (
        "outside the scope nothing is recomputed"
    )
    monkeypatch.undo()
    assert nn.Module.__call__ is found


def test_lazy_modules_become_what_they_are() -> None:
    model = nn.Sequential(nn.Sequential(nn.LazyLinear(4), nn.ReLU()), nn.Sequential(nn.LazyBatchNorm1d(), nn.ReLU()))
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(model)
        for _ in range(2):
            model(torch.randn(3, 7)).sum().backward()
    assert (type(model[0][0]), model[0][0].in_features, model[1][0].num_features) == (nn.Linear, 7, 4)
    assert all(row["recomputed"] for row in rows(model))


def test_modules_may_change_their_class_inside() -> None:
    block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(nn.Sequential(block, nn.Sequential(nn.Linear(4, 4))))
        nn.utils.parametrizations.orthogonal(block[0])
        block(torch.randn(2, 4)).sum().backward()
    nn.utils.parametrize.remove_parametrizations(block[0], "weight")
    assert type(block[0]) is nn.Linear


def test_an_error_in_a_block_leaves_all_as_it_was() -> None:
    def failing(**options: Any) -> nn.Module:
        model = network(2)
        with msctx.context(**options) as ctx:
            ctx.watch(model)
            for _ in range(3):
                with pytest.raises(RuntimeError, match="channels"):
                    model[1](X)
        return model

    assert same(train(failing(memory_optimize_level="O1"))[0], train(failing(memory_optimize_level="O0"))[0])


@pytest.mark.parametrize("how", ["wrapped", "wrapped and watched", "in place"])
def test_compiled_models_are_left_alone_with_a_warning(how: str) -> None:
    model = network(2).eval()
    expected = model(X)
    with msctx.context(memory_optimize_level="O1") as ctx:
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        if how == "in place":
            model.compile(fullgraph=True, backend="aot_eager")
            compiled = model
        ctx.watch(compiled if how == "wrapped and watched" else model)
        with pytest.warns(MsctxWarning, match="Sequential runs compiled, where none of its blocks are computed again"):
            found = compiled(X)
        assert {(row["recomputed"], row["reason"]) for row in rows(model)} == {(False, NOT_CALLED)}
        assert not any(row["recomputed"] for row in msctx.memory_stats()["recomputed"] if row["reason"] == NOT_CALLED)
    torch.testing.assert_close(found, expected)
    torch.compiler.reset()  # it keeps tensors


def test_a_compiled_model_is_not_compiled_anew_in_each_scope() -> None:
    model = network(2)
    counted: list[int] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        counted.append(1)
        return graph.forward

    compiled = torch.compile(model, backend=backend)
    ctx = msctx.context(memory_optimize_level="O1").watch(model)
    for _ in range(12):
        with ctx:
            compiled(X)
    compiled(X)
    assert len(counted) <= 2
    torch.compiler.reset()


def test_a_model_that_is_gone_is_forgotten() -> None:
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(model := nn.Sequential(nn.Sequential(Residual(3))))
        for _ in range(3):
            model(X).sum().backward()
        found = len(msctx.memory_stats()["recomputed"])
        del model
        assert len(msctx.memory_stats()["recomputed"]) == found - 1


# --- long rows --------------------------------------------------------------------------------------------------------


def vgg() -> nn.Sequential:
    """Layers in a row; the smaller images, the more channels."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    before = 3
    for channels, count in ((8, 4), (16, 4), (32, 6)):
        for _ in range(count):
            layers += [nn.Conv2d(before, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
            before = channels
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(), nn.Linear(32 * 16, 10))


def test_a_long_row_is_cut_into_groups_and_takes_less_memory() -> None:
    plain, before = train(vgg())
    again, after = train(model := vgg(), memory_optimize_level="O1")
    assert same(plain, again)
    found = rows(model)
    assert len(found) > 2
    assert all(row["recomputed"] for row in found)
    assert max(after[1:]) < 0.7 * max(before[1:])


def test_rows_inside_models_and_what_is_done_to_them() -> None:
    class Vgg(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.features, self.head = vgg()[:-3], nn.Sequential(nn.Flatten(), nn.Linear(32 * 16, 10))
            self.features.register_module("shared", self.features[2])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.features(x))

    assert list(blocks(Vgg())) == ["features"]
    again, _ = train(model := Vgg(), memory_optimize_level="O1")
    assert same(train(Vgg())[0], again)
    assert {row["path"].partition("[")[0] for row in rows(model)} == {"features"}
    features = model.features
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(model)
        features.append(nn.Tanh())
        model(X).sum().backward()
        found = rows(model)
        assert found[-1]["path"].endswith(f":{len(features)}]")
        assert len({row["path"] for row in found}) == len(found)
        scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU()))
        assert scripted(torch.ones(1, 2)).shape == (1, 2)
        traced = torch.fx.symbolic_trace(features)
        assert len(traced.graph.nodes) == len(features) + 2
        calls: list[Any] = []
        features[3].register_forward_hook(lambda *_: calls.append(1))
        model(X).sum().backward()
        assert len(calls) == 1
    assert nn.Sequential.forward.__qualname__ == "Sequential.forward"
    assert "msctx" not in nn.Sequential.forward.__code__.co_filename


def test_cuts_are_where_least_is_kept() -> None:
    def sizes(*values: int) -> list[dict[int, int]]:
        return [{number: value} for number, value in enumerate(values)]

    even = [{100 + number: 10} for number in range(9)]
    assert best_cuts(sizes(*[10] * 9), even) == [0, 3, 6, 9], "as many groups as each has modules"
    assert best_cuts(sizes(1, 1, 1, 1), [{9: 100}, {}, {}, {8: 1}])[0] == 0
    assert not {3, 6} & {*best_cuts(sizes(*[10] * 9), even, {3, 6})}, "not where the input is written to"
    assert best_cuts(sizes(5, 5), [{}, {}]) == [0, 2], "nothing is saved: nothing is cut"


def test_no_cuts_are_better() -> None:
    dice = random.Random(0)
    for _ in range(200):
        count = dice.randint(1, 7)
        numbers = sorted(dice.choices(range(4), k=count))  # in place, or views: the same storage goes on
        given = [{100 + number: 7 + 5 * number} for number in numbers]
        saved = [{key: dice.randint(1, 30) for key in dice.sample(range(8), 2)} | dice.choice(given) for _ in range(count)]
        writing = {*dice.sample(range(count), dice.randint(0, count // 2))}

        def cost(cuts: tuple[int, ...], given: Any = given, saved: Any = saved) -> int:
            groups = [
                {key: size for sizes in saved[b:e] for key, size in sizes.items() if key not in given[b]}
                for b, e in pairwise(cuts)
            ]
            kept = {key: size for cut in cuts[:-1] for key, size in given[cut].items() if key not in given[0]}
            return sum(kept.values()) + max(sum(sizes.values()) for sizes in groups)

        places = [number for number in range(1, count) if number not in writing]
        all_cuts = [(0, *some, count) for length in range(count) for some in combinations(places, length)]
        assert cost((*best_cuts(given, saved, writing),)) == min(map(cost, all_cuts))


def widening() -> nn.Sequential:
    torch.manual_seed(0)
    widths = pairwise((3, 16, 16, 32, 32, 64, 64))
    return nn.Sequential(*[layer for one, two in widths for layer in (nn.Conv2d(one, two, 3, padding=1), nn.ReLU())])


def test_a_row_that_widens_takes_less_memory() -> None:
    x = torch.randn(4, 3, 64, 64)
    plain, before = train(widening(), x=x)
    again, after = train(model := widening(), x=x, memory_optimize_level="O1")
    assert same(plain, again)
    assert len(rows(model)) > 1
    assert max(after[1:]) < 0.9 * max(before[1:])


def test_a_row_of_one_group_is_left_alone() -> None:
    model = nn.Sequential(nn.Linear(8, 512), nn.ReLU(), nn.Linear(512, 8), nn.Flatten())
    train(model, x=torch.randn(64, 8), memory_optimize_level="O1")
    assert [(row["recomputed"], row["reason"]) for row in rows(model)] == [(False, WHOLE)]


# --- which blocks -----------------------------------------------------------------------------------------------------


class Stage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Residual(4), Residual(4)])


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head, self.second = Residual(4), nn.Linear(2, 2), Residual(4)


class Wrapper(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


MODELS: dict[str, tuple[Callable[[], nn.Module], list[str]]] = {
    "one layer": (lambda: nn.Linear(2, 2), []),
    "layers in a row": (lambda: nn.Sequential(nn.Linear(2, 2), nn.ReLU()), [""]),
    "a long row": (vgg, [""]),
    "rows in a row": (lambda: nn.Sequential(*[nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(5)]), [""]),
    "a row below": (lambda: nn.Sequential(vgg(), nn.Sequential(nn.Linear(2, 2), nn.ReLU())), ["0"]),
    "a row of short rows of three": (
        lambda: nn.Sequential(*[nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Tanh()) for _ in range(5)]),
        [""],
    ),
    "short rows of three by number": (
        lambda: nn.ModuleList([nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Tanh()) for _ in range(3)]),
        ["0", "1", "2"],
    ),
    "short rows beside blocks": (
        lambda: nn.ModuleList([nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Tanh()), Residual(4)]),
        ["0", "1"],
    ),
    "recurrent layers": (lambda: nn.ModuleList([nn.LSTM(2, 2), nn.Linear(2, 2), nn.GRU(2, 2)]), ["0", "2"]),
    "no containers": (lambda: Residual(4), [""]),
    "parts by name": (Parts, ["first", "second"]),
    "parts in a wrapper": (lambda: Wrapper(Parts()), ["model.first", "model.second"]),
    "blocks in a row": (lambda: network(2), ["1.0", "1.1"]),
    "stages of blocks": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.ModuleList([Stage(), Stage()])),
        ["1.0.blocks.0", "1.0.blocks.1", "1.1.blocks.0", "1.1.blocks.1"],
    ),
    "PyTorch's encoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 2, enable_nested_tensor=False),
        ["layers.0", "layers.1"],
    ),
    "by name": (lambda: nn.ModuleDict({"a": Residual(4), "b": nn.ReLU()}), ["a"]),
}


@pytest.mark.full
@pytest.mark.parametrize("name", MODELS)
def test_blocks_of_a_model(name: str) -> None:
    make, expected = MODELS[name]
    assert list(blocks(make())) == expected

"""memory_optimize_level="O1": blocks of watched models are computed again in the backward pass, as few as the cap asks for."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

import msctx
from msctx.memory import recompute
from msctx.memory.budget import choose
from msctx.memory.recompute import blocks

pytestmark = pytest.mark.usefixtures("one_thread")
MB = 2**20


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    gc.collect()
    assert msctx.memory_stats()["current_bytes"] == 0


class Residual(nn.Module):
    """Has dropout (random numbers), batch normalisation (buffers) and spectral normalisation (buffers that its output depends on)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolution = spectral_norm(nn.Conv2d(channels, channels, 3, padding=1))
        self.normalisation = nn.BatchNorm2d(channels)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return x + scale * self.dropout(torch.relu(self.normalisation(self.convolution(x))))


def network(count: int = 5) -> nn.Sequential:
    torch.manual_seed(0)
    stem, head = nn.Conv2d(3, 16, 3), nn.Sequential(nn.Flatten(), nn.Linear(16 * 30 * 30, 10))
    return nn.Sequential(stem, nn.Sequential(*[Residual(16) for _ in range(count)]), head)


X = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def train(model: nn.Module, steps: int = 4, x: torch.Tensor = X, **options: Any) -> tuple[dict[str, torch.Tensor], list[int]]:
    """The state after some steps, and what each took at most."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    torch.manual_seed(2)
    peaks = []
    with msctx.context(**{"memory_optimize_level": "O0", **options}) as ctx:
        ctx.watch(model)
        for _ in range(steps):
            begin = msctx.memory_stats()["current_bytes"]
            msctx.reset_peak_memory_stats()
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            peaks.append(msctx.memory_stats()["peak_bytes"] - begin)
    return {name: value.clone() for name, value in model.state_dict().items()}, peaks


def rows(model: nn.Module) -> list[dict[str, Any]]:
    return [row._asdict() for row in recompute._budgets[model].rows()]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


# --- bits and bytes ---------------------------------------------------------------------------------------------------


def test_the_same_bits_in_less_memory() -> None:
    """Without a cap everything is recomputed; random numbers and buffers are as they would have been."""
    plain, before = train(network())
    again, after = train(model := network(), memory_optimize_level="O1")
    assert same(plain, again)
    assert max(after[1:]) < 0.7 * max(before[1:])
    assert {(row["recomputed"], row["reason"]) for row in rows(model)} == {(True, "there is no cap, and O1 puts memory first")}


def test_a_cap_decides_how_much_and_holds() -> None:
    plain, before = train(network(8))
    needed, least = max(before[1:]), max(train(network(8), memory_optimize_level="O1")[1][1:])
    cap = (needed + least) // 2
    with pytest.raises(torch.OutOfMemoryError):
        train(network(8), max_device_memory=cap)
    state, after = train(model := network(8), 6, memory_optimize_level="O1", max_device_memory=cap)
    assert same(plain, train(network(8), max_device_memory="8GB")[0])
    found = [row["recomputed"] for row in rows(model)]
    assert 0 < sum(found) < len(found), "as few as needed, not all"
    assert max(after[2:]) > max(after[:2]), "what there is room for is kept"
    assert same(state, train(network(8), 6)[0])


def test_with_room_for_all_nothing_is_recomputed() -> None:
    _, before = train(network())
    _, after = train(model := network(), memory_optimize_level="O1", max_device_memory="8GB")
    assert [row["recomputed"] for row in rows(model)] == [False] * 5
    assert abs(after[-1] - before[-1]) < 0.05 * before[-1]


def test_what_a_block_keeps_is_measured() -> None:
    train(model := network(), memory_optimize_level="O1")
    size = 8 * 16 * 30 * 30 * 4
    for row in rows(model):  # the results of the convolution, of relu and the mask; the weight that is normalised is small
        assert 3 * size <= row["saved_bytes"] <= 3 * size + 64 * 1024
        assert row["seconds"] > 0
    paths = [f"1.{number}" for number in range(5)]
    assert [row["path"] for row in rows(model)] == paths
    assert {f"Sequential.{path}" for path in paths} <= {row["path"] for row in msctx.memory_stats()["recomputed"]}


def test_scopes_as_short_as_a_step_add_up() -> None:
    model = network()

    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    @msctx.context(memory_optimize_level="O1", max_device_memory="8GB")
    def step() -> None:
        msctx.current().watch(model)
        model(X).square().mean().backward()
        optimizer.step()

    for _ in range(5):
        step()
    assert [row["recomputed"] for row in rows(model)] == [False] * 5


def test_larger_inputs_are_measured_for_themselves_and_smaller_ones_go_by_them() -> None:
    model = network(3)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    sizes = []
    with msctx.context(memory_optimize_level="O1", max_device_memory="8GB") as ctx:
        ctx.watch(model)
        for batch, steps in ((2, 5), (8, 5), (3, 1)):
            for _ in range(steps):
                model(X[:batch]).square().mean().backward()
                optimizer.step()
            sizes.append(rows(model)[0]["saved_bytes"])
    assert 3.5 < sizes[1] / sizes[0] < 4.5
    assert sizes[2] == sizes[1]
    assert [row["recomputed"] for row in rows(model)] == [False] * 3


def test_without_an_optimizer_of_torchs_it_is_decided_later() -> None:
    model = network(2)
    with msctx.context(memory_optimize_level="O1", max_device_memory="8GB") as ctx:
        ctx.watch(model)
        for _ in range(12):
            model(X[:2]).square().mean().backward()
    assert [row["recomputed"] for row in rows(model)] == [False] * 2


def test_a_tighter_cap_decides_anew() -> None:
    least = max(train(model := network(), memory_optimize_level="O1")[1][1:])
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def steps(count: int) -> list[bool]:
        for _ in range(count):
            optimizer.zero_grad()
            model(X).square().mean().backward()
            optimizer.step()
        return [row["recomputed"] for row in rows(model)]

    with msctx.context(memory_optimize_level="O1", max_device_memory="8GB"):
        assert not any(steps(5))
        with msctx.context(max_device_memory=least + MB):
            assert any(steps(5))
        assert not any(steps(5))


class Perceptron(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


def stack(count: int, width: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[Perceptron(width) for _ in range(count)])


def accumulated(model: nn.Module, x: torch.Tensor, **options: Any) -> int:
    """Trains with gradients of four passes; the peak under the cap."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    with msctx.context(memory_optimize_level="O1", **options) as ctx:
        ctx.watch(model)
        for number in range(24):
            model(x).square().mean().backward()
            if number % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
        return msctx.memory_stats()["caps"][0]["peak_bytes"]


def test_the_cap_holds_when_gradients_are_accumulated_and_the_optimizer_comes_later() -> None:
    x = torch.randn(128, 128)
    optimizer_and_gradients = 3 * sum(p.nbytes for p in stack(6, 128).parameters())
    for slack in (3, 4, 6, 8):
        accumulated(model := stack(6, 128), x, max_device_memory=optimizer_and_gradients + slack * MB)
    assert not all(row["recomputed"] for row in rows(model)), "where there is room, some are kept"


def test_the_cap_holds_when_a_model_runs_several_times_in_a_step() -> None:
    def adversaries(cap: int) -> int:
        torch.manual_seed(0)
        maker, judge = stack(4, 64), stack(4, 64)
        steps = [torch.optim.Adam(model.parameters(), 1e-4) for model in (maker, judge)]
        with msctx.context(memory_optimize_level="O1", max_device_memory=cap) as ctx:
            ctx.watch(maker).watch(judge)
            for _ in range(10):
                noise = torch.randn(512, 64)
                steps[1].zero_grad()
                (judge(torch.randn(512, 64)) - judge(maker(noise).detach())).mean().backward()
                steps[1].step()
                steps[0].zero_grad()
                judge(maker(noise)).mean().backward()
                steps[0].step()
            return msctx.memory_stats()["caps"][0]["peak_bytes"]

    needed = adversaries(2**33)
    for cap in (needed, int(0.8 * needed), int(0.6 * needed)):
        assert adversaries(cap) <= cap


def test_what_was_not_reached_when_it_was_to_be_measured_is_measured_later() -> None:
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.passes = nn.ModuleList([Perceptron(64) for _ in range(4)]), 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.passes += 1
            for number, layer in enumerate(self.layers):
                if self.passes > 3 or number % 2:
                    x = layer(x)
            return x

    model = Dropped()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(model)
        for _ in range(6):
            model(torch.randn(64, 64)).sum().backward()
            optimizer.step()
    assert all(row["saved_bytes"] and row["recomputed"] for row in rows(model))


# --- what else models do ----------------------------------------------------------------------------------------------


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


def test_compiled_models_are_left_alone() -> None:
    model = network(2).eval()
    expected = model(X)
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(model)
        found = torch.compile(model, fullgraph=True, backend="aot_eager")(X)
    torch.testing.assert_close(found, expected)
    torch.compiler.reset()  # it keeps tensors


def test_a_model_that_is_gone_is_forgotten() -> None:
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(model := nn.Sequential(nn.Sequential(Residual(3))))
        for _ in range(3):
            model(X).sum().backward()
        found = len(msctx.memory_stats()["recomputed"])
        del model
        assert len(msctx.memory_stats()["recomputed"]) == found - 1


# --- blocks of all kinds ----------------------------------------------------------------------------------------------


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.f = nn.Linear(8, 8)
        self.register_buffer("average", torch.zeros(8))

    def forward(self, x: Any, **more: Any) -> Any:
        return torch.tanh(self.f(x))


class NewBuffer(Plain):
    def forward(self, x: Any, **more: Any) -> Any:
        self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
        return torch.tanh(self.f(x) - self.average)


class BufferInPlace(Plain):
    def forward(self, x: Any, **more: Any) -> Any:
        self.average.mul_(0.5).add_(x.detach().mean(0))
        return torch.tanh(self.f(x) - self.average)


class PythonsRandom(Plain):
    def forward(self, x: Any, **more: Any) -> Any:
        return torch.tanh(self.f(x) * (1 + random.random()) * (1 + np.random.rand()))


class Skips(Plain):
    def forward(self, x: Any, **more: Any) -> Any:
        return x if random.random() < 0.5 else torch.tanh(self.f(x))


class WritesToInput(Plain):
    def forward(self, x: Any, **more: Any) -> Any:
        return self.f(x.mul_(0.7))


class Counts(Plain):
    count = 0

    def forward(self, x: Any, **more: Any) -> Any:
        self.count += 1
        return torch.tanh(self.f(x) * self.count)


class Modes(Plain):
    def forward(self, x: Any, **more: Any) -> Any:
        return torch.tanh(self.f(x)) if self.training else self.f(x)


KINDS = [Plain, NewBuffer, BufferInPlace, PythonsRandom, Skips, WritesToInput, Modes]


def losses(kind: type[Plain], **options: Any) -> tuple[list[torch.Tensor], Any]:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    model = nn.Sequential(nn.Linear(8, 8), *[kind() for _ in range(3)])
    found = []
    with msctx.context(**options) as ctx:
        ctx.watch(model)
        for _ in range(4):
            model(torch.randn(4, 8)).square().sum().backward()
            model.eval()
            model.train()
            found += [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    return [*found, *model.buffers()], (random.random(), np.random.rand(), torch.rand(3).tolist())


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_all_kinds_have_the_same_bits(kind: type[Plain]) -> None:
    plain, again = losses(kind), losses(kind, memory_optimize_level="O1")
    assert plain[1] == again[1], "random numbers go on as they would have"
    assert len(plain[0]) == len(again[0])
    assert all(torch.equal(one, other) for one, other in zip(plain[0], again[0], strict=True))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(WritesToInput, "it writes to its inputs"), (Counts, "computing it again gives other results")],
)
def test_what_cannot_be_computed_again_is_left_and_told(kind: type[Plain], reason: str) -> None:
    model = nn.Sequential(nn.Linear(8, 8), kind())
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(model)
        model(torch.randn(4, 8)).sum().backward()
    assert [(row["recomputed"], row["reason"]) for row in rows(model)] == [(False, reason)]


def test_lists_that_grow_and_names_that_checkpoint_has_too() -> None:
    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([Wide(count) for count in (1, 2, 3)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            features = [x]
            for block in self.blocks:
                features.append(block(features, function=1.5, debug=True, use_reentrant=True))
            return torch.cat(features, 1)

    class Wide(nn.Module):
        def __init__(self, count: int) -> None:
            super().__init__()
            self.f = nn.Linear(8 * count, 8)

        def forward(self, features: list[torch.Tensor], function: float, debug: bool, use_reentrant: bool) -> torch.Tensor:
            return torch.tanh(self.f(torch.cat(features, 1))) * function

    def made() -> nn.Module:
        torch.manual_seed(0)
        return Dense()

    x = torch.randn(4, 8)
    model = made()
    assert same(train(made(), x=x)[0], train(model, x=x, memory_optimize_level="O1")[0])
    assert all(row["recomputed"] for row in rows(model))


def test_a_list_that_a_block_appends_to() -> None:
    class Appends(Plain):
        def forward(self, x: Any, found: Any = None, **more: Any) -> Any:
            found.append(h := torch.tanh(self.f(x)))
            return h

    def gradients(**options: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        block = Appends()
        model = nn.ModuleList([block])
        found: list[torch.Tensor] = []
        with msctx.context(**options) as ctx:
            ctx.watch(model)
            block(torch.ones(2, 8), found)
            sum(h.sum() for h in found).backward()  # type: ignore[union-attr]
        assert len(found) == 1
        return [parameter.grad for parameter in block.parameters() if parameter.grad is not None]

    for one, other in zip(gradients(), gradients(memory_optimize_level="O1"), strict=True):
        assert torch.equal(one, other)


def test_backward_twice_and_through_itself() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(Plain(), BufferInPlace()), torch.randn(4, 8, requires_grad=True)

    def found() -> list[torch.Tensor]:
        model[1].average.zero_()
        model.zero_grad()
        loss = model(x).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        slope.square().sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    expected = found()
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(model)
        for one, other in zip(expected, found(), strict=True):
            assert torch.equal(one, other)


def test_other_parameters_transforms_and_changes_between() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(Plain(), Plain()), torch.randn(4, 8)
    new = {name: torch.randn_like(value).requires_grad_() for name, value in model.named_parameters()}

    def gradients() -> list[torch.Tensor]:
        return [*torch.autograd.grad(torch.func.functional_call(model, new, x).sum(), [*new.values()])]

    def by_sample() -> dict[str, torch.Tensor]:
        def loss(values: dict[str, torch.Tensor], one: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(model, values, one[None]).sum()

        return torch.func.vmap(torch.func.grad(loss), (None, 0))({name: value.detach() for name, value in new.items()}, x)

    expected, samples = gradients(), by_sample()
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(model)
        for _ in range(3):
            assert all(torch.equal(one, other) for one, other in zip(expected, gradients(), strict=True))
        assert same(samples, by_sample())
        loss = model(x).sum()
        with torch.no_grad():
            model[0].f.weight.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


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


def test_threads_have_their_own_shapes() -> None:
    model = stack(2, 32)
    errors: list[BaseException] = []

    def work(batch: int) -> None:
        try:
            for _ in range(6):
                torch.autograd.grad(model(torch.randn(batch, 32)).sum(), [*model.parameters()])
        except BaseException as error:
            errors.append(error)

    with msctx.context(memory_optimize_level="O1", max_device_memory="1GB") as ctx:
        ctx.watch(model)
        threads = [threading.Thread(target=work, args=(8 * number,)) for number in (1, 2, 3, 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []


def test_on_an_accelerator_its_caps_count_and_its_statistics_stay(far: Callable[..., str]) -> None:
    far("""
        import torch
        from torch import nn
        from msctx.memory import recompute, watched

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 64))
            def forward(self, x, *, scale):
                return x + scale * self.body(x)

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.words, self.layers = nn.Embedding(9, 64), nn.ModuleList([Block() for _ in range(6)])
            def forward(self, tokens):  # on the host, as token numbers may be
                x = self.words(tokens.to("far"))
                for layer in self.layers:
                    x = layer(x, scale=0.5)
                return x

        def train(steps, on=False, fraction=1.0):
            torch.far.get_per_process_memory_fraction = lambda device: fraction
            torch.far.get_device_properties = lambda device: type("Properties", (), {"total_memory": 2**30})
            torch.manual_seed(0)
            model = Model().to("far")
            optimizer = torch.optim.Adam(model.parameters(), 1e-3)
            begin = torch.far.memory_allocated()
            peaks = []
            recompute.write(on)
            watched.watch(model)
            for _ in range(steps):
                torch.far.reset_peak_memory_stats()
                optimizer.zero_grad()
                model(torch.arange(512).remainder(9)).square().mean().backward()
                optimizer.step()
                peaks.append(torch.far.max_memory_allocated() - begin)
            rows = recompute._budgets[model].rows() if on else []
            recompute.write(False)
            return [p.detach().cpu() for p in model.parameters()], max(peaks[2:]), [row.recomputed for row in rows], begin

        plain, most, _, begin = train(8)
        again, least, rows, _ = train(8, True)
        assert all(torch.equal(a, b) for a, b in zip(plain, again)) and rows == [True] * 6
        assert least < 0.7 * most
        cap = int((begin + (most + least) / 2) / 0.95) + 2**20
        again, between, rows, _ = train(8, True, cap / 2**30)
        assert all(torch.equal(a, b) for a, b in zip(plain, again))
        assert 0 < sum(rows) < 6, rows
        assert least < between <= cap - begin
        assert train(8, True, 0.5)[2] == [False] * 6
    """)


# --- which blocks -----------------------------------------------------------------------------------------------------


class Stage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Residual(4), Residual(4)])


MODELS: dict[str, tuple[Callable[[], nn.Module], list[str]]] = {
    "one layer": (lambda: nn.Linear(2, 2), []),
    "layers in a row": (lambda: nn.Sequential(nn.Linear(2, 2), nn.ReLU()), [""]),
    "no containers": (lambda: Residual(4), [""]),
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


@pytest.mark.parametrize("name", MODELS)
def test_blocks_of_a_model(name: str) -> None:
    make, expected = MODELS[name]
    assert list(blocks(make())) == expected


@given(
    found=st.lists(st.tuples(st.integers(0, 100), st.floats(0, 10)), max_size=12),
    room=st.one_of(st.none(), st.integers(-50, 400)),
)
def test_what_is_kept_fits_and_nothing_more_would(found: list[tuple[int, float]], room: int | None) -> None:
    blocks = [(str(number), *block) for number, block in enumerate(found)]
    made = choose(blocks, room)
    assert [(row.path, row.saved_bytes, row.seconds) for row in made] == blocks
    kept = [row.saved_bytes for row in made if not row.recomputed and row.saved_bytes]
    again = [row.saved_bytes for row in made if row.recomputed]
    assert all(again)
    if room is None:
        assert kept == []
    else:
        assert sum(kept) <= max(0, room)
        assert all(sum(kept) + size > room for size in again)
    if again and room is not None:  # what is kept stays when more room is found
        more = choose(blocks, max(again), [row.path for row in made if not row.recomputed])
        assert {row.path for row in made if not row.recomputed} < {row.path for row in more if not row.recomputed}


def test_the_dearest_to_compute_is_kept_first() -> None:
    made = choose([("cheap", 10, 0.1), ("dear", 10, 1.0), ("small", 1, 0.05)], 11)
    assert [row.recomputed for row in made] == [True, False, False]


def test_of_like_blocks_the_last_are_kept() -> None:
    made = choose([(str(number), 10, 1.0 + number % 2 / 20) for number in range(5)], 25)
    assert [row.recomputed for row in made] == [True, True, True, False, False]

"""memory_optimize_level="O1": blocks of watched models are computed again in the backward pass, as few as the cap asks for."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

import msctx
from msctx.memory.recompute import blocks, choose

MB = 2**20


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
    return [row for row in msctx.memory_stats()["recomputed"] if row["path"].startswith(type(model).__name__)]


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
    assert [row["path"] for row in rows(model)] == [f"Sequential.1.{number}" for number in range(5)]


def test_scopes_as_short_as_a_step_add_up() -> None:
    model = network()

    @msctx.context(memory_optimize_level="O1", max_device_memory="8GB")
    def step() -> None:
        msctx.current().watch(model)
        model(X).square().mean().backward()

    for _ in range(4):
        step()
    assert [row["recomputed"] for row in rows(model)] == [False] * 5


def test_other_shapes_are_measured_for_themselves() -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.Sequential(*[Residual(16) for _ in range(3)]))
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(model)
        sizes = []
        for batch in (8, 2):
            for _ in range(3):
                model(X[:batch]).square().mean().backward()
            sizes.append(rows(model)[0]["saved_bytes"])
    assert 3.5 < sizes[0] / sizes[1] < 4.5


def test_a_tighter_cap_decides_anew() -> None:
    least = max(train(model := network(), memory_optimize_level="O1")[1][1:])
    with msctx.context(memory_optimize_level="O1", max_device_memory="8GB"):
        with msctx.context(max_device_memory=least + MB):
            model(X).square().mean().backward()
        assert any(row["recomputed"] for row in rows(model))
        model(X).square().mean().backward()
        assert not any(row["recomputed"] for row in rows(model))


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


def test_classes_copies_and_pickles_are_as_ever() -> None:
    model = network(2)
    classes = [type(module) for module in model.modules()]
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(model)
        assert isinstance(model[1][0], Residual)
        assert type(model[1][0]) is not Residual
        assert repr(model) == repr(network(2))
        twin, thawed = copy.deepcopy(model), pickle.loads(pickle.dumps(nn.Sequential(nn.Sequential(nn.Linear(2, 2)))))
        assert [type(module) for module in twin.modules()] == classes
        assert type(thawed) is nn.Sequential
        twin(X).sum().backward()
        assert model[0].weight.grad is None, "a copy computes with its own weights"
    assert [type(module) for module in model.modules()] == classes


def test_a_watched_model_is_pickled_as_its_own_class() -> None:
    model = nn.Sequential(nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.TransformerEncoderLayer(4, 2, 8)))
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(model)
        thawed = pickle.loads(pickle.dumps(model))
    assert [type(module) for module in thawed.modules()] == [type(module) for module in model.modules()]


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


def test_a_model_that_is_gone_is_forgotten() -> None:
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(model := nn.Sequential(nn.Sequential(Residual(3))))
        for _ in range(3):
            model(X).sum().backward()
        found = len(msctx.memory_stats()["recomputed"])
        del model
        assert len(msctx.memory_stats()["recomputed"]) == found - 1


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

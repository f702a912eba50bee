"""A context acts on the models that it watches while it is open, whoever dies meanwhile."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import msctx
from msctx.errors import MsctxWarning
from msctx.memory import parameters
from msctx.native import watched

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def weights_in_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ASCEND_WORK_PATH", str(tmp_path))


def model_of(channels: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, 4, 3), nn.Conv2d(4, 4, 3))


def moved() -> int:
    return parameters.placed()["moved"]


def test_a_later_context_leaves_the_models_of_one_that_was_left_alone() -> None:
    model = model_of()
    with msctx.context(deterministic="OFF") as ctx:
        ctx.watch(model)
    with msctx.context(external_weight=True) as later:
        assert moved() == 0
        with ctx:
            assert moved() == 4, "it keeps its models, also inside another"
        assert moved() == 0
        later.watch(model)
        assert moved() == 4
    assert moved() == 0
    with later:
        assert moved() == 4, "entered again it has them, too"


def test_contexts_inside_one_that_watches_act_on_its_models() -> None:
    one, other = model_of(), model_of()
    with msctx.context(deterministic="OFF") as outer:
        outer.watch(one)
        with msctx.context(external_weight=True) as inner:
            assert moved() == 4
            inner.watch(other).watch(one)
            assert moved() == 8
        assert moved() == 0
    with msctx.context(external_weight=True) as outer:
        outer.watch(one)
        with msctx.context(deterministic="OFF") as inner:
            inner.watch(one).watch(other)
            assert moved() == 8
        assert moved() == 4, "the inner one's own are put back"


def test_nothing_is_recomputed_for_a_context_that_was_left() -> None:
    model = nn.Sequential(*[nn.Sequential(nn.Conv2d(3, 3, 3), nn.Tanh()) for _ in range(2)])

    def is_recomputed() -> bool:
        return "forward" in vars(model[0])

    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(model)
        assert is_recomputed()
    with msctx.context(memory_optimize_level="O1") as later:
        assert not is_recomputed()
        later.watch(nn.Sequential(nn.Sequential(nn.Tanh()), nn.Sequential(nn.Tanh())))
    with ctx:
        assert is_recomputed()
    assert not is_recomputed()


def test_names_and_rules_are_those_of_open_contexts() -> None:
    one, other = model_of(), model_of()
    x = torch.randn(1, 3, 8, 8)
    with msctx.context(conv_fprop_algo="gemm") as first:
        first.watch(one)
        one(x)
    assert [row.module for row in first.choices()] == ["0", "1"]
    with msctx.context(conv_algo_rules={"0": "direct"}) as second:
        second.watch(other)
        one(x)
        other(x)
    assert {row.module: row.ran for row in second.choices()} == {"0": "direct"}, "the first model's 0 is not meant"
    with first:
        one(x)
    assert {row.module: row.calls for row in first.choices()} == {"0": 2, "1": 2}


def test_outside_of_every_block_it_is_for_the_process() -> None:
    msctx.current().watch(model := model_of())
    with msctx.context(external_weight=True):
        assert moved() == 4
    assert len(watched.models()) == 1
    del model
    gc.collect()
    assert watched.models() == []


def test_a_function_that_is_bound_has_the_models_of_its_context() -> None:
    model = model_of()
    with msctx.context(external_weight=True) as ctx:
        ctx.watch(model)
        bound = ctx.bind(moved)
    assert bound() == 4
    assert moved() == 0
    with pytest.warns(MsctxWarning, match="did nothing to any model"):
        assert pickle.loads(pickle.dumps(bound))() == 0


def test_copies_and_pickles_of_watched_models_are_not_watched() -> None:
    model = model_of()
    with msctx.context(external_weight=True) as ctx:
        ctx.watch(model)
        others = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), copy.copy(model)[0:1]]
        assert moved() == 4
        for other in others[:2]:
            assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "option",
    [{"conv_fprop_algo": "gemm", "fallback": "silent"}, {"memory_optimize_level": "O1"}, {"external_weight": True}],
    ids=str,
)
def test_scripted_and_traced_models_can_be_watched(option: dict[str, Any]) -> None:
    model = nn.Sequential(nn.Sequential(nn.Conv2d(3, 3, 3), nn.Tanh()), nn.Sequential(nn.Conv2d(3, 3, 3), nn.Tanh()))
    x = torch.randn(1, 3, 8, 8)
    expected = model(x)
    for other in (torch.jit.script(model), torch.jit.trace(model, x)):
        with msctx.context(**option) as ctx:
            ctx.watch(other)
            found = other(x)
            found.sum().backward()
        assert torch.allclose(found, expected, atol=1e-5)


# --- models that die, and what looking costs ------------------------------------------------------------------------------


def looks(monkeypatch: pytest.MonkeyPatch) -> list[watched.Model]:
    """The models that are looked at from now on."""
    found: list[watched.Model] = []
    look = watched._look_at
    monkeypatch.setattr(watched, "_look_at", lambda model: (found.append(model), look(model))[1])
    return found


def test_entering_does_not_look_at_the_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(*[nn.Conv2d(3, 3, 3, padding=1) for _ in range(20)])
    other, x = nn.Conv2d(3, 3, 3), torch.randn(1, 3, 8, 8)
    ctx = msctx.context(conv_fprop_algo="gemm", fallback="silent").watch(model)
    with ctx:
        model(x)
        other(x)
    found, models = looks(monkeypatch), len(watched.KNOWN)
    for _ in range(10):
        with ctx:
            model(x)
            other(x)
    assert len(found) <= 4 * models, "the other's weight might have become one of the model's"
    found.clear()
    model[3].weight.data = torch.randn(3, 3, 3, 3)
    for _ in range(watched_weights() // 32 + 1):  # beside many modules, not each call asks whether weights are gone
        with ctx:
            model(x)
    assert len(found) == models, "once, since a weight was met that nobody had named"
    assert {row.module: row.calls for row in ctx.choices()}["3"] >= 12


def watched_weights() -> int:
    return sum(spot is not None for model in watched.KNOWN for _, _, spot in model.found)


def test_models_of_the_process_that_die_are_no_longer_open() -> None:
    base = msctx.current()
    kept = nn.Linear(1, 1)
    base.watch(kept)
    for _ in range(5):
        base.watch(nn.Linear(1, 1))
    gc.collect()
    base.watch(kept)
    assert watched.models() == [kept]
    assert all(model.module() is not None for model in watched.KNOWN)
    assert len(watched.OPEN) == len(watched.OF_PROCESS._models) == 1
    del kept
    gc.collect()
    assert watched.models() == []


def test_two_threads_train_two_watched_models() -> None:
    def trained(model: nn.Module, seed: int) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(4, 8, generator=generator)).square().mean().backward()
            optimizer.step()
        return [value.clone() for value in model.state_dict().values()]

    def made(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh()) for _ in range(4)])

    expected = [trained(made(seed), seed) for seed in range(2)]
    found: dict[int, list[torch.Tensor]] = {}
    with msctx.context(memory_optimize_level="O1") as ctx:
        models = [made(seed) for seed in range(2)]
        for model in models:
            ctx.watch(model)
        threads = [
            threading.Thread(target=lambda seed=seed: found.update({seed: trained(models[seed], seed)})) for seed in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(row["recomputed"] for row in msctx.memory_stats()["recomputed"][-8:])
    for seed in range(2):
        assert all(torch.equal(one, other) for one, other in zip(expected[seed], found[seed], strict=True))

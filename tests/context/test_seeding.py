"""seed and seed_scope in force: every generator is seeded, kept or put back, in workers of a data loader too."""

import random
import warnings
from contextlib import ExitStack
from typing import Any

import numpy
import pytest
import torch
from context_helpers import OwnError

import msctx
from msctx.switches.torch_core import of_rank


def draw() -> tuple[Any, ...]:
    return (
        random.random(),
        random.gauss(0, 1),
        numpy.random.rand(),
        numpy.random.randn(),
        torch.rand(3).tolist(),
        torch.randn(1).item(),
    )


def test_seed_seeds_every_generator() -> None:
    with msctx.context(seed=3):
        first = draw()
        assert draw() != first
    with msctx.context(seed=3):
        pass
    assert draw() == first, "it is not taken back"
    with msctx.context(seed=4):
        assert draw()[0] != first[0]
        assert torch.initial_seed() == 4


@pytest.mark.parametrize("error", [None, OwnError])
def test_seed_scope_puts_the_generators_back(error: type[Exception] | None) -> None:
    random.seed(1)
    numpy.random.seed(1)
    torch.manual_seed(1)
    random.gauss(0, 1)  # one more number is kept for the next call
    numpy.random.randn()
    states = random.getstate(), torch.get_rng_state().tolist()
    with ExitStack() as stack:
        if error:
            stack.enter_context(pytest.raises(error))
        with msctx.context(seed=3, seed_scope=True):
            inside = draw()
            if error:
                raise error
    assert (random.getstate(), torch.get_rng_state().tolist()) == states
    outside = draw()
    with msctx.context(seed_scope=True):
        draw()
        with msctx.context(seed=3):
            assert draw() == inside
    random.seed(1)
    numpy.random.seed(1)
    torch.manual_seed(1)
    random.gauss(0, 1)
    numpy.random.randn()
    assert draw() == outside


class Draws(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return index, random.random(), float(numpy.random.rand()), torch.rand(1).item()


def test_each_rank_has_a_seed_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    models, found = [], []
    for rank in ("0", "1", "1"):
        monkeypatch.setenv("RANK", rank)
        with msctx.context(seed=1):
            models.append(draw())
            with msctx.context(seed=1, seed_by_rank=True):
                found.append(draw())
                with msctx.context(runtime_num_threads=1):  # has nothing to do with seeds
                    found[-1] += draw()
    assert models[0] == models[1]
    assert {*map(str, found[0])}.isdisjoint(map(str, found[1]))
    assert found[1] == found[2]
    monkeypatch.delenv("RANK")
    with msctx.context(seed=1, seed_by_rank=True):
        assert draw() + draw() == found[0]
    for name in ("SLURM_PROCID", "PMI_RANK", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.setenv(name, "1")
        with msctx.context(seed=1, seed_by_rank=True):
            assert draw() + draw() == found[1]
        monkeypatch.delenv(name)


def test_a_rank_that_becomes_known_later_does_not_seed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    with msctx.context(seed=1, seed_by_rank=True):
        before = draw() + draw()
    with msctx.context(seed=1, seed_by_rank=True):
        after = draw()
        monkeypatch.setenv("RANK", "2")
        with msctx.context(runtime_num_threads=1):
            assert after + draw() == before
        with msctx.context(seed_by_rank=True, seed=1):
            assert draw() != before[: len(after)]


def test_workers_by_worker_init_fn_have_neither() -> None:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        msctx.context(seed=1, seed_by_rank=True).worker_init_fn()
    assert torch.initial_seed() == 0


def test_workers_of_a_data_loader_draw_the_same_in_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(seed: int, **more: Any) -> list[Any]:
        with msctx.context(seed=seed, seed_scope=True, **more):
            loader = torch.utils.data.DataLoader(
                Draws(), batch_size=None, shuffle=True, num_workers=2, multiprocessing_context="fork"
            )
            return [tuple(row) for row in loader]

    first = run(0)
    assert run(0) == first
    assert {row[1:] for row in run(1)}.isdisjoint(row[1:] for row in first)
    of_ranks = {}
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        of_ranks[rank] = run(0, seed_by_rank=True)
    assert {row[1:] for row in of_ranks["1"]}.isdisjoint(row[1:] for row in [*first, *of_ranks["0"]])
    assert len({row[1] for row in first}) == len({row[2] for row in first}) == 6


def test_what_is_derived_does_not_change_between_versions() -> None:
    assert [of_rank(1, rank) for rank in (0, 1)] == [8431846347943309920, 4042681867674859579]
    with msctx.context(seed=2**32 - 1, seed_scope=True):
        assert torch.initial_seed() == 2**32 - 1, "the largest"

"""seed and seed_scope in force: every generator is seeded, kept or put back, in workers of a data loader too."""

import random
from contextlib import ExitStack
from typing import Any

import numpy
import pytest
import torch
from context_helpers import OwnError

import msctx


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
        assert draw() == first
    with msctx.context(seed=4):
        assert draw()[0] != first[0]
        assert torch.initial_seed() == 4


def test_seed_is_not_taken_back() -> None:
    with msctx.context(seed=3):
        pass
    after = draw()
    with msctx.context(seed=3):
        assert draw() == after


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


def test_workers_of_a_data_loader_draw_the_same_in_each_run() -> None:
    def run(seed: int) -> list[Any]:
        with msctx.context(seed=seed, seed_scope=True):
            loader = torch.utils.data.DataLoader(
                Draws(), batch_size=None, shuffle=True, num_workers=2, multiprocessing_context="fork"
            )
            return [tuple(row) for row in loader]

    first = run(0)
    assert run(0) == first
    assert {row[1:] for row in run(1)}.isdisjoint(row[1:] for row in first)
    assert len({row[1] for row in first}) == len({row[2] for row in first}) == 6

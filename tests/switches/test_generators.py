"""Random number generators: seeded together, saved and put back together."""

from __future__ import annotations

import random

import numpy
import pytest
import torch

from msctx.native import distributed
from msctx.switches import SWITCHES
from msctx.switches.torch_core import of_rank


def draw() -> tuple[float, float, float]:
    return random.random(), float(numpy.random.rand()), torch.rand(1).item()


def test_a_seed_fixes_all_three():
    SWITCHES["rng.seed"].set(5)
    first = draw()
    SWITCHES["rng.seed"].set(5)
    assert draw() == first
    SWITCHES["rng.seed"].set(6)
    assert all(a != b for a, b in zip(draw(), first, strict=True))
    assert SWITCHES["rng.seed"].read() == 6


def test_the_state_comes_back():
    state = SWITCHES["rng.saved"].take()
    first = draw()
    SWITCHES["rng.seed"].set(1)
    SWITCHES["rng.saved"].put_back(state)
    assert draw() == first


def test_the_largest_seed():
    SWITCHES["rng.seed"].set(2**32 - 1)
    assert torch.initial_seed() == 2**32 - 1


def test_a_seed_for_each_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for rank in range(3):
        monkeypatch.setattr(distributed, "known_rank", lambda rank=rank: rank)
        SWITCHES["rng.seed"].set({"seed": 5, "by_rank": True})
        assert torch.initial_seed() == of_rank(5, rank) > 2**32
        found[rank] = draw()
        SWITCHES["rng.seed"].set({"seed": 5, "by_rank": True})
        assert draw() == found[rank]
    SWITCHES["rng.seed"].set(5)
    assert all(len({*column}) == 4 for column in zip(draw(), *found.values(), strict=True))
    monkeypatch.setattr(distributed, "known_rank", lambda: None)
    SWITCHES["rng.seed"].set({"seed": 5, "by_rank": True})
    assert draw() == found[0], "who is alone is rank 0"


def test_what_is_derived_does_not_change_between_versions() -> None:
    assert [of_rank(1, rank) for rank in (0, 1)] == [8431846347943309920, 4042681867674859579]

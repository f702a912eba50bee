"""Random number generators: seeded together, saved and put back together."""

from __future__ import annotations

import random

import numpy
import torch

from msctx.switches import SWITCHES


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

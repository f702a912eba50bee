"""Turns, medians and spreads; the clock is the test's own."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
import torch

from msctx.compare import measure
from msctx.compare.measure import Entrant, interleaved

CPU = torch.device("cpu")


class Clock:
    """Time that passes where a run says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(measure, "time", made)
    return made


def test_medians_of_ratios_of_neighbours(clock: Clock) -> None:
    def taking(seconds: float) -> None:
        clock.now += seconds

    found = interleaved(
        [Entrant("a", nullcontext, lambda: taking(0.01)), Entrant("b", nullcontext, lambda: taking(0.005))], 0.1, CPU
    )
    assert found["b"].ratio == pytest.approx(2.0)
    assert found["a"].ratio == 1.0
    assert found["b"].spread == pytest.approx(0.0, abs=1e-9)
    assert found["b"].seconds == pytest.approx(0.005)


def test_turns_change_their_order_and_scopes_are_left(clock: Clock) -> None:
    seen: list[str] = []

    def entrant(name: str) -> Entrant:
        @contextmanager
        def scope() -> Iterator[None]:
            clock.now += 100  # outside the time
            seen.append(name)
            yield
            seen.append(name.upper())

        def run() -> None:
            clock.now += 0.01

        return Entrant(name, scope, run)

    found = interleaved([entrant("a"), entrant("b")], 0.0, CPU)
    rounds = {tuple(seen[place : place + 4]) for place in range(4, len(seen), 4)}
    assert rounds == {("a", "A", "b", "B"), ("b", "B", "a", "A")}
    assert found["a"].rounds == measure.LEAST
    assert found["a"].seconds == pytest.approx(0.01)


def test_short_runs_are_repeated_within_a_turn(clock: Clock) -> None:
    count = 0

    def run() -> None:
        nonlocal count
        count += 1
        clock.now += 1e-4

    found = interleaved([Entrant("a", nullcontext, run)], 0.0, CPU)
    assert count == 2 + (1 + 20) * measure.LEAST
    assert found["a"].seconds == pytest.approx(1e-4)


def test_spread_tells_noise(clock: Clock) -> None:
    untimed = [0.01] * 7
    times = itertools.chain([0.01, 0.01], *zip(untimed, [0.01, 0.01, 0.03, 0.02, 0.01, 0.01, 0.02], strict=True))

    def steady() -> None:
        clock.now += 0.01

    def run() -> None:
        clock.now += next(times)

    found = interleaved([Entrant("a", nullcontext, steady), Entrant("b", nullcontext, run)], 0.0, CPU)
    assert found["b"].spread > measure.NOISY


def test_a_single_round_has_no_spread(clock: Clock) -> None:
    def run() -> None:
        clock.now += 0.01

    found = interleaved([Entrant("a", nullcontext, run), Entrant("b", nullcontext, run)], 1.0, CPU, lambda: True)
    assert (found["b"].rounds, found["b"].spread) == (1, None)


def test_an_interrupted_measurement_has_the_rounds_before(clock: Clock) -> None:
    turns = []

    def run() -> None:
        turns.append(1)
        if len(turns) == 2 * 2 + 2 * 2 * 3 + 3:  # within the fourth round
            raise KeyboardInterrupt
        clock.now += 0.01

    entrants = [Entrant("a", nullcontext, run), Entrant("b", nullcontext, run)]
    with pytest.raises(measure.Interrupted) as caught:
        interleaved(entrants, 1.0, CPU)
    assert caught.value.found["b"].rounds == 3
    assert caught.value.found["b"].ratio == pytest.approx(1.0)
    turns[:] = [1] * 18  # the next is the first turn of all
    with pytest.raises(KeyboardInterrupt) as early:
        interleaved(entrants, 1.0, CPU)
    assert not isinstance(early.value, measure.Interrupted)


def test_a_gain_is_more_than_luck() -> None:
    def faster(ratio: float, spread: float | None, rounds: int, noise: float = 0.0) -> bool:
        return measure.is_faster(ratio, measure.margin(spread, rounds), noise)

    assert faster(1.05, 0.02, 9)
    assert not faster(1.01, 0.0, 200), "too small"
    assert not faster(1.05, 0.1, 9), "three standard errors are 9 %"
    assert faster(1.05, 0.1, 100)
    assert not faster(1.05, 0.02, 9, noise=0.1), "torch differs from itself by more"
    assert not faster(2.0, None, 1), "it was stopped"
    assert measure.Ratio(1.0, 0.9, 0.01, 9).noise == pytest.approx(0.1)
    assert measure.Ratio(1.0, 1.0, 0.3, 9).noise == pytest.approx(0.28), "1.00 by luck"


def test_what_a_scope_does_when_it_is_entered_is_not_in_the_time(clock: Clock) -> None:
    """As frozen_weights, under which each weight is looked at once, and memory_optimize_level, which settles after some steps."""
    left = 0

    def entrant(name: str, cost: float, runs: int) -> Entrant:
        @contextmanager
        def scope() -> Iterator[None]:
            nonlocal left
            left = runs
            yield

        def run() -> None:
            nonlocal left
            clock.now += 0.01 + cost * max(left, 0)
            left -= 1

        return Entrant(name, scope, run)

    found = interleaved([entrant("torch", 0, 0), entrant("frozen", 0.05, 1), entrant("settles", 0.01, 4)], 0.0, CPU)
    assert {name: one.ratio for name, one in found.items()} == pytest.approx({"torch": 1.0, "frozen": 1.0, "settles": 1.0})


def test_equal_choices_are_seldom_told_apart() -> None:
    chance = random.Random(1)
    found = 0
    for _ in range(400):
        noise = [[chance.gauss(1, 0.05) for _ in range(measure.LEAST)] for _ in range(2)]
        one = measure._ratio(*noise)
        found += measure.is_faster(one.ratio, measure.margin(one.spread, one.rounds))
    assert found < 400 * 0.02


def test_an_entrant_that_raises_leaves_the_others(clock: Clock) -> None:
    calls = []

    def failing() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyError("third")
        clock.now += 0.01

    def run() -> None:
        clock.now += 0.01

    found = interleaved([Entrant("a", nullcontext, run), Entrant("b", nullcontext, failing)], 0.0, CPU)
    assert isinstance(found["b"], measure.Failed)
    assert found["a"].ratio == 1.0
    with pytest.raises(KeyError):
        interleaved([Entrant("b", nullcontext, lambda: {}["x"])], 0.0, CPU)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_the_gpus_own_clock() -> None:
    device = torch.device("cuda")
    small, large = (torch.randn(n, n, device=device) for n in (512, 2048))
    found = interleaved(
        [Entrant("large", nullcontext, lambda: large @ large), Entrant("small", nullcontext, lambda: small @ small)],
        0.2,
        device,
    )
    assert found["small"].ratio > 4

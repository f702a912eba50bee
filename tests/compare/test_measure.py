"""Turns, medians and spreads; the clock is the test's own."""

from __future__ import annotations

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
    assert count == 1 + 20 * measure.LEAST
    assert found["a"].seconds == pytest.approx(1e-4)


def test_spread_tells_noise(clock: Clock) -> None:
    times = iter([0.01, 0.01, 0.01, 0.03, 0.02, 0.01])

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

"""Turns, medians and spreads; the clock is the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from msctx.compare import measure
from msctx.compare.measure import Entrant, interleaved

CPU = torch.device("cpu")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Time that passes where a run says so."""
    made = SimpleNamespace(now=0.0, perf_counter=lambda: made.now)
    monkeypatch.setattr(measure, "time", made)
    return made


def test_turns_change_their_order_and_scopes_are_left(clock: Any) -> None:
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


def test_what_a_scope_does_when_it_is_entered_is_not_in_the_time(clock: Any) -> None:
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


def test_an_entrant_that_raises_leaves_the_others(clock: Any) -> None:
    runs = iter(range(2))

    def run() -> None:
        clock.now += 0.01

    def failing() -> None:
        clock.now += 0.01 + next(runs)  # there is no third

    found = interleaved([Entrant("a", nullcontext, run), Entrant("b", nullcontext, failing)], 0.0, CPU)
    assert isinstance(found["b"], Exception)
    assert found["a"].ratio == 1.0
    with pytest.raises(StopIteration):
        interleaved([Entrant("b", nullcontext, failing)], 0.0, CPU)

"""Times of several entrants side by side, in turns."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

LEAST, MOST = 7, 200
"""Rounds: no figure rests on fewer, and more do not help."""
SHORT = 2e-3
"""Seconds that a turn should take at least: shorter runs are repeated within it."""
SETTLED, SETTLING = 0.9, 6
"""A run that takes less than this part of the one before shows that its scope has not settled; after so many runs it is taken so."""
PROVEN = 0.02
"""A gain of less is none, however quiet the machine is."""
NOISY = 0.1
"""A control that is off by more, or a spread of more than twice this, is noise."""
ERRORS = 2.8
"""Three standard errors of the median of normally distributed ratios are so many times their interquartile range, over the root of
how many there are."""


@dataclass
class Entrant:
    name: str
    scope: Callable[[], AbstractContextManager[Any]]
    """Entered around each turn. What that costs is outside the time, as a program pays it once and not in each step."""
    run: Callable[[], Any]


@dataclass(frozen=True)
class Ratio:
    """How an entrant did beside the first."""

    seconds: float
    """The median of its turns."""
    ratio: float
    """The first's time over its own in the same round: the median over rounds."""
    spread: float | None
    """The interquartile range of these ratios, as a part of the median; ``None`` of a single round."""
    rounds: int
    times: tuple[float, ...] = ()
    """The seconds of a run in each round."""

    @property
    def ms(self) -> list[float]:
        """The times in ms, as they are written down."""
        return [float(f"{seconds * 1e3:.5g}") for seconds in self.times]


def margin(spread: float | None, rounds: int) -> float:
    """How far the median of ratios may be off, as a part of it: three standard errors. A single round shows nothing."""
    return math.inf if spread is None or rounds < 2 else ERRORS * spread / math.sqrt(rounds)


def is_faster(ratio: float, own: float, noise: float = 0.0) -> bool:
    """Whether a ratio is a gain: at least :data:`PROVEN`, and beyond its *own* margin and the *noise* of the first beside itself."""
    return ratio > 1 + max(PROVEN, own, noise)


def interleaved(entrants: Sequence[Entrant], seconds: float, device: torch.device) -> dict[str, Ratio | Exception]:
    """The first is what the others are compared with, and what it raises is raised.

    All have run before: nothing is compiled or tuned here. What a scope does when it is entered (a weight is looked at, memory is
    fetched) it does again in each turn; so a turn begins with runs that are not timed, as many as it takes a scope to settle.

    Args:
        seconds: to be spent; seven rounds are made even if they take longer.
    """
    times: dict[str, list[float]] = {entrant.name: [] for entrant in entrants}
    failed: dict[str, Exception] = {}
    order, chance = list(entrants), random.Random(0)
    plans: dict[str, tuple[int, int]] = {}
    """How many runs of a turn are not timed, and how many are."""

    def turn(entrant: Entrant) -> None:
        if entrant.name in failed:
            return
        try:
            with entrant.scope():
                if entrant.name not in plans:
                    plans[entrant.name] = _plan(entrant.run, device)
                    return
                first, timed = plans[entrant.name]
                for _ in range(first):
                    entrant.run()
                times[entrant.name].append(seconds_of(entrant.run, device, timed))
        except Exception as error:
            if entrant is entrants[0]:
                raise
            failed[entrant.name] = error

    for entrant in entrants:
        turn(entrant)
    began = time.perf_counter()
    for number in range(MOST):
        if number >= LEAST and time.perf_counter() - began > seconds:
            break
        chance.shuffle(order)
        for entrant in order:
            turn(entrant)
    first = times[entrants[0].name]
    return {name: failed[name] if name in failed else ratio_between(first, own) for name, own in times.items()}


def _plan(run: Callable[[], Any], device: torch.device) -> tuple[int, int]:
    """How many runs it takes a scope to settle, and how many make a turn, found inside it."""
    first, last = seconds_of(run, device), seconds_of(run, device)
    count = 1
    while last < SETTLED * first and count < SETTLING:
        first, last, count = last, seconds_of(run, device), count + 1
    return count, max(1, min(1000, math.ceil(SHORT / max(last, 1e-7))))


def ratio_between(first: Sequence[float], own: Sequence[float]) -> Ratio:
    """Of the rounds that both took part in."""
    ratios = [a / b for a, b in zip(first, own, strict=False)]
    median = statistics.median(ratios)
    quarters = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else None
    spread = (quarters[2] - quarters[0]) / median if quarters else None
    return Ratio(statistics.median(own), median, spread, len(ratios), tuple(own))


def seconds_of(run: Callable[[], Any], device: torch.device, runs: int = 1) -> float:
    """Seconds of one run, the mean of some: on a GPU by its own events, on other accelerators until they have finished."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            begin.record()
            for _ in range(runs):
                run()
            end.record()
            end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / runs
    wait: Callable[..., Any] = (lambda _: None) if device.type == "cpu" else torch.get_device_module(device).synchronize
    wait(device)
    start = time.perf_counter()
    for _ in range(runs):
        run()
    wait(device)
    return (time.perf_counter() - start) / runs

"""How figures are reduced and written: with the range over processes, and bold only if that and A/A bear them out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

LEAST = 3
"""Processes: of fewer no figure is bold."""
NOISY = 1.1
"""By which factor A/A is off if figures within it are none."""
Figure = dict[str, float]
"""``median``, ``low`` and ``high``; without what each process found the median only."""


def of(each: Sequence[float] | None, median: float | None = None) -> Figure:
    """The figure of some processes; *median*: the figure, if it is no plain median of them."""
    if not each:
        assert median is not None
        return {"median": median}
    return {"median": statistics.median(each) if median is None else median, "low": min(each), "high": max(each)}


def geomean(values: Iterable[float]) -> float:
    found = list(values)
    return math.exp(sum(map(math.log, found)) / len(found))


def of_problems(problems: list[dict[str, Any]]) -> dict[str, Any]:
    """A row: the geometric mean over problems, with the range over processes; the slowest and the fastest problem; A/A of each."""
    ratios = [p["ratio"] for p in problems]
    each = [geomean(found) for found in zip(*(p["ratios"] for p in problems), strict=False)]
    each[-1] = geomean([p["ratios"][-1] for p in problems])  # if each problem's are in order, the widest range there can be
    return {
        "ratio": of(each, geomean(ratios)),
        "from": min(ratios),
        "to": max(ratios),
        "lower_bound": min(p["lower_bound"] for p in problems),
        "again": of([p["control"] for p in problems]),
        "processes": min(len(p["ratios"]) for p in problems),
    }


def noise(again: Figure | None) -> float:
    """The most by which torch differed from itself, as a factor."""
    return max(max(c, 1 / c) for c in (again.get("low", again["median"]), again.get("high", again["median"]))) if again else 1.0


def text(figure: Figure, again: Figure | None, processes: int, with_dash: bool = True) -> str:
    """A figure with its range, bold if that contains neither 1 nor the deviation of A/A; none within an A/A that is off by 10 %."""
    off, median = noise(again), figure["median"]
    if with_dash and off > NOISY and 1 / off <= median <= off:
        return "-"
    if "low" not in figure:
        return f"{median:.2f}"
    shown = span(figure)
    return f"**{shown}**" if processes >= LEAST and (figure["low"] > off or figure["high"] < 1 / off) else shown


def span(figure: Figure, form: str = ".2f") -> str:
    return f"{figure['median']:{form}} ({figure['low']:{form}} to {figure['high']:{form}})"


def ends(figure: Figure) -> str:
    return f"{figure['low']:.2f} to {figure['high']:.2f}"


def legend(kept: bool, processes: int) -> str:
    """The sentence under a table that explains bold figures."""
    dash = '"-": within the deviation of A/A, which exceeds 10 %.'
    if not kept:
        return f"The processes' own figures were not stored: no figure has an interval, and none is bold. {dash}"
    if processes < LEAST:
        return f"In brackets: the range over processes. With fewer than {LEAST} processes no figure is bold. {dash}"
    return f"In brackets: the range over processes. Bold: it contains neither 1 nor the largest deviation of A/A. {dash}"

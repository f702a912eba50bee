"""How figures are reduced and written: with the range over processes, and bold only if that and A/A bear them out."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import contest
import summary

LEAST = 3
"""Processes: of fewer no figure is bold."""
NOISY = 1.1
"""By which factor A/A is off if figures within it are none."""
Figure = dict[str, float]
"""``median``, ``low`` and ``high``."""


def of(each: Sequence[float], median: float | None = None) -> Figure:
    """The figure of some processes; *median*: the figure, if it is no plain median of them."""
    return {"median": statistics.median(each) if median is None else median, "low": min(each), "high": max(each)}


def geomean(values: Iterable[float]) -> float:
    return statistics.geometric_mean(values)


def ratios(found: summary.Rows, ours: str = "ours", theirs: str = "torch") -> list[float]:
    """Of each process: the time of their fastest over that of ours."""
    return [min(row["ms"][theirs].values()) / min(row["ms"][ours].values()) for row in found]


def errors(found: summary.Rows) -> dict[str, float]:
    """Those of the first process: the others do not look for any."""
    return next(row["errors"] for row in found if "errors" in row)


def beyond(rows: summary.Rows) -> int:
    """How many problems were off by more than their bound: the first process tells."""
    return sum(not row.get("within", True) for row in rows)


def share(found: summary.Rows, side: str) -> float:
    """Of the multiply-adds that the processor's threads could have computed meanwhile."""
    each = zip(found, ratios(found, side, "peak"), strict=True)
    return float(statistics.median(row["loops"] * ratio / row["threads"] for row, ratio in each))


def of_problems(problems: list[summary.Rows]) -> dict[str, Any]:
    """A row, from those of each problem: the geometric mean with the range over processes; the slowest and the fastest problem; A/A
    of each; the largest errors; shares of the peak."""
    has_peak = all("loops" in row for found in problems for row in found)
    shares = {side: of([share(found, side) for found in problems]) for side in ("ours", "torch") if has_peak}
    each = [ratios(found) for found in problems]
    medians = [statistics.median(found) for found in each]
    return {
        "ratio": of([geomean(found) for found in zip(*each, strict=False)], geomean(medians)),
        "from": min(medians),
        "to": max(medians),
        "again": of([statistics.median(ratios(found, "again")) for found in problems]),
        "processes": min(map(len, each)),
        "error": max(errors(found)["ours"] for found in problems),
        "torch_error": max(errors(found)["torch"] for found in problems),
    } | ({"shares": shares} if shares else {})


def of_groups(rows: summary.Rows, groups: Mapping[str, contest.Group]) -> Iterator[tuple[dict[str, Any], list[summary.Rows]]]:
    """For each group and number of threads: how its row begins, and what was measured of each problem."""
    found = summary.by(rows, "group", "threads")
    for name, threads in itertools.product(groups, sorted({row["threads"] for row in rows})):
        if of := found.get((name, threads)):
            yield {"what": groups[name].title, "threads": threads}, [*summary.by(of, "layer", "batch").values()]


COLUMNS = ("geomean", "from", "to", "A/A", "error, PyTorch's", "share of peak, PyTorch's")


def columns(rows: summary.Rows) -> tuple[Sequence[str], list[list[str]]]:
    """The heads, and the cells of each row. The last is left out if no row has shares."""
    count = len(COLUMNS) - (not has_shares(rows))
    return COLUMNS[:count], [cells(row)[:count] for row in rows]


def has_shares(rows: Iterable[dict[str, Any]]) -> bool:
    return any("shares" in row for row in rows)


def cells(row: dict[str, Any]) -> list[str]:
    """Those of :data:`COLUMNS`; empty if msctx computed nothing."""
    if "ratio" not in row:
        return [""] * len(COLUMNS)
    shown = [
        text(row["ratio"], row["again"], row["processes"]),
        *(f"{row[name]:.2f}" for name in ("from", "to")),
    ]
    shares = ", ".join(map(ends, row["shares"].values())) if "shares" in row else ""
    return [*shown, ends(row["again"]), f"{row['error']:.0e}, {row['torch_error']:.0e}", shares]


def text(figure: Figure, again: Figure, processes: int) -> str:
    """A figure with its range, bold if that contains neither 1 nor the deviation of A/A; none within an A/A that is off by 10 %."""
    off, median = max(max(c, 1 / c) for c in (again["low"], again["high"])), figure["median"]
    if off > NOISY and 1 / off <= median <= off:
        return "-"
    shown = span(figure)
    return f"**{shown}**" if processes >= LEAST and (figure["low"] > off or figure["high"] < 1 / off) else shown


def span(figure: Figure, form: str = ".2f") -> str:
    return f"{figure['median']:{form}} ({figure['low']:{form}} to {figure['high']:{form}})"


def ends(figure: Figure) -> str:
    return f"{figure['low']:.2f} to {figure['high']:.2f}"


PEAK = (
    "Share of peak: multiply-adds a second of the direct computation, over those of a loop of FMAs in registers on one thread, times "
    "threads; the lowest and the highest of a problem. Winograd, Fourier transforms and AMX can exceed 1."
)


def legend(processes: int, rows: Iterable[dict[str, Any]] = ()) -> str:
    """The sentences under a table that explain bold figures and shares."""
    dash = '"-": within the deviation of A/A, which exceeds 10 %.' + f" {PEAK}" * has_shares(rows)
    if processes < LEAST:
        return f"In brackets: the range over processes. With fewer than {LEAST} processes no figure is bold. {dash}"
    return f"In brackets: the range over processes. Bold: it contains neither 1 nor the largest deviation of A/A. {dash}"

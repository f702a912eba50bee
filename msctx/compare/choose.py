"""Which choice to take: the fastest beyond the noise that it and torch have themselves; among equals the plainest.

A plan is a choice for each row, torch's own path where its name is empty. It gains where its time on the whole is beyond the margin
of its own figures and the noise of torch beside itself. The fastest such plan is the front runner. Another one is as good unless the
front runner beats it, round by round, beyond the margin of these two alone: a third choice does not count. Of those that are as good,
precision is not given away for nothing, and what sets the fewest options is the plainest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msctx.compare.grid import besides
from msctx.compare.measure import is_faster, margin, ratio_of
from msctx.compare.result import NO_SAY, Cell, PointOptions, Row

ALIKE = 4
"""How many times the smallest error that of a plan may be which is as exact."""


def noise_of(row: Row) -> float:
    """How far torch differs from itself in a row: a ratio within this shows nothing."""
    return max(abs(row.control - 1), _control_margin(row))


def _control_margin(row: Row) -> float:
    return margin(row.control_spread, row.rounds) if "control_spread" in row.model_fields_set else 0.0


def is_gain(row: Row, cell: Cell) -> bool:
    """Whether a choice is faster than torch beyond the noise of its row; one that was stopped early has shown nothing."""
    return is_faster(cell.ratio, _margin(row, cell), noise_of(row))


def _margin(row: Row, cell: Cell) -> float:
    return margin(cell.spread, len(cell.times) or row.rounds)


@dataclass(frozen=True)
class Plan:
    """A choice for each row, and the options that bring it about."""

    points: tuple[str, ...]
    rest: Mapping[str, Any] = field(default_factory=dict)
    """Options that hold in all rows, whatever their choice."""
    options: int = 0
    """How many are to be set."""


@dataclass(frozen=True)
class Estimate:
    """How many times as fast as another plan one is, and how far that may be off, as a part of it."""

    ratio: float
    margin: float
    noise: float = 0.0

    @property
    def is_gain(self) -> bool:
        return is_faster(self.ratio, self.margin, self.noise)


def estimate(rows: Sequence[Row], plan: Plan, other: Plan | None = None) -> Estimate:
    """A plan beside another one, or beside torch's own path, over all rows as often as they occur."""
    own = theirs = again = squares = noises = 0.0
    for number, row in enumerate(rows):
        if not row.baseline.ms:
            continue
        base = row.count * row.baseline.ms
        mine = row.cell_of(plan.points[number])
        his = row.cell_of(other.points[number]) if other is not None else None
        ratio, off = _beside(row, mine, his)
        ms = base / (mine.ratio if mine else 1.0)
        own, theirs, again = own + ms, theirs + ms * ratio, again + base / row.control
        squares += (ms * ratio * off) ** 2 if off else 0.0
        noises += (base * _control_margin(row)) ** 2
    if not own:
        return Estimate(1.0, math.inf)
    noise = 0.0 if other is not None else max(abs(theirs / again - 1), math.sqrt(noises) / theirs)
    return Estimate(theirs / own, math.sqrt(squares) / theirs, noise)


def _beside(row: Row, mine: Cell | None, other: Cell | None) -> tuple[float, float]:
    """How many times as fast as the other a choice is in a row, and the margin of that: of the rounds that both took part in."""
    if mine is other:
        return 1.0, 0.0
    if mine and other and mine.times and other.times:
        ratio, spread = ratio_of(other.times, mine.times)
        return ratio, margin(spread, len(mine.times))
    off = [_margin(row, cell) for cell in (mine, other) if cell]
    return (mine.ratio if mine else 1.0) / (other.ratio if other else 1.0), math.hypot(*off)


def best(rows: Sequence[Row], plans: Iterable[Plan]) -> tuple[Plan | None, float]:
    """The plan to take, and how many times as fast as torch it is; ``None``: torch's own path."""
    found = [(plan, one) for plan in plans if (one := estimate(rows, plan)).is_gain]
    if not found:
        return None, 1.0
    front, _ = max(found, key=lambda each: each[1].ratio)
    alike = [(plan, one, _error(rows, plan)) for plan, one in found if plan is front or not estimate(rows, front, plan).is_gain]
    least = min(error for _, _, error in alike)
    exact = [(plan, one) for plan, one, error in alike if error <= ALIKE * least]
    plan, one = min(exact, key=lambda each: (each[0].options, -each[1].ratio))
    return plan, one.ratio


def _error(rows: Sequence[Row], plan: Plan) -> float:
    cells = [row.cell_of(point) or row.baseline for row, point in zip(rows, plan.points, strict=True)]
    return max((cell.error or 0.0 for cell in cells), default=0.0)


def for_all(rows: Sequence[Row], points: Iterable[PointOptions]) -> list[Plan]:
    """Of each choice that is right in every row, the plan to take it everywhere."""
    return [
        Plan((point.name,) * len(rows), point.options, len(point.options))
        for point in points
        if all(row.cell_of(point.name) for row in rows)
    ]


def by_row(rows: Sequence[Row], points: Sequence[PointOptions]) -> list[Plan]:
    """For each set of options beside algorithms the plan with the best choice of each row, of those that have these options.

    So what is gained is what one file of settings gains: rules choose algorithms by layer, and the other options hold everywhere.
    """
    plans = (_with(rows, points, rest) for rest in rests(point.options for point in points))
    return [plan for plan in plans if plan is not None]


def rests(options: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The different sets of options beside algorithms that choices have."""
    found: list[dict[str, Any]] = []
    for one in options:
        if (rest := besides(one)) not in found:
            found.append(rest)
    return found


def _with(rows: Sequence[Row], points: Sequence[PointOptions], rest: Mapping[str, Any]) -> Plan | None:
    wanted = {point.name for point in points if besides(point.options) == rest}
    chosen: list[str] = []
    for row in rows:
        cells = [cell for cell in row.cells if cell.point in wanted]
        timed = [cell for cell in cells if cell.ratio]
        plan, _ = best([row], [Plan((cell.point,), {}, len(cell.asked)) for cell in timed])
        point = plan.points[0] if plan else ""
        if rest and plan is None and row.cells:  # the options hold here, too, whatever they do
            if not timed and any(cell.status != NO_SAY for cell in cells):
                return None
            point = max(timed, key=lambda cell: cell.ratio).point if timed else ""
        chosen.append(point)
    return Plan(tuple(chosen), rest, len(rest) + sum(map(bool, chosen)))

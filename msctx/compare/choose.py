"""Which choice to take: the fastest beyond the noise that it and torch have themselves; among equals the plainest.

A plan is a choice for each row, torch's own path where its name is empty. It gains where its time on the whole is beyond the margin
of its own figures and the noise of torch beside itself. The fastest such plan is the front runner. Another one is as good unless the
front runner beats it, round by round, beyond the margin of these two alone: a third choice does not count. Of those that are as good,
precision is not given away for nothing, and what sets the fewest options is the plainest.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
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


def by_row(rows: Sequence[Row], points: Sequence[PointOptions], keys: Sequence[Hashable] | None = None) -> list[Plan]:
    """For each set of options beside algorithms the plan with the best choice of each row, of those that have these options.

    So what is gained is what one file of settings gains: rules choose algorithms by layer, and the other options hold everywhere.
    Each choice also has a plan that takes it in all rows where it has a time: what is within the noise of every single row may be a
    gain on the whole.

    Args:
        keys: of each row; rows with equal keys get the same choice.
    """
    groups: dict[Hashable, list[int]] = {}
    for number, key in enumerate(range(len(rows)) if keys is None else keys):
        groups.setdefault(key, []).append(number)
    different = rests(point.options for point in points)
    return [plan for rest in different for plan in _with(rows, points, rest, list(groups.values()))]


def rests(options: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The different sets of options beside algorithms that choices have."""
    found: list[dict[str, Any]] = []
    for one in options:
        if (rest := besides(one)) not in found:
            found.append(rest)
    return found


def _with(
    rows: Sequence[Row], points: Sequence[PointOptions], rest: Mapping[str, Any], groups: Sequence[Sequence[int]]
) -> list[Plan]:
    """Of the points with these options: the plan with the best of each group of rows, and one for each point."""
    wanted = [point.name for point in points if besides(point.options) == rest]
    parts = [[rows[number] for number in group if rows[number].cells] for group in groups]
    own = [name for part in parts if (name := _best_of(part, wanted, holds=bool(rest))) is not None]
    if len(own) < len(parts):
        return []
    plans = [own]
    for name in wanted:
        plans.append([name if part and _is_timed(part, name) else other for part, other in zip(parts, own, strict=True)])
    found: dict[tuple[str, ...], Plan] = {}
    for names in plans:
        by_number = {number: name for group, name in zip(groups, names, strict=True) for number in group}
        chosen = tuple(by_number[number] for number in range(len(rows)))
        found[chosen] = Plan(chosen, rest, len(rest) + sum(map(bool, chosen)))
    return list(found.values())


def _is_timed(rows: Sequence[Row], point: str) -> bool:
    """Whether a choice has a time in all of these rows, and was not stopped early."""
    return all((cell := row.cell_of(point)) is not None and cell.spread is not None for row in rows)


def _best_of(rows: Sequence[Row], names: Sequence[str], holds: bool) -> str | None:
    """The best choice for rows that have to share one, ``""``: torch's own path. ``None``: there is none that is right.

    Args:
        holds: whether the choices have options that apply to these rows whatever is chosen, so that torch's own path is no choice.
    """
    plans = [
        Plan((name,) * len(rows), {}, len(cell.asked))
        for name in names
        if rows and all(row.cell_of(name) for row in rows) and (cell := rows[0].cell_of(name))
    ]
    plan, _ = best(rows, plans)
    if plan is None and holds:
        plan = max(plans, key=lambda one: estimate(rows, one).ratio, default=None)
        if plan is None and any(cell.status != NO_SAY for row in rows for cell in row.cells if cell.point in names):
            return None
    return plan.points[0] if plan else ""

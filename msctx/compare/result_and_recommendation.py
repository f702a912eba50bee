"""What a comparison found: its rows, as models for result.json; what follows from them: totals, and the settings to recommend."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import yaml
from pydantic import BaseModel

from msctx.compare.config import Comparison, Point
from msctx.compare.timing import is_faster, margin
from msctx.context import explain
from msctx.options import make_layer
from msctx.run.record import plain

Status = Literal["measured", "no_say", "unable", "failed", "slow"]
"""no_say: none of its options applies to the row; unable: it cannot run, or has no effect; failed: it raised, or its result
was wrong; slow: it was stopped after its first runs."""


class Cell(BaseModel):
    """One choice in one row: its figures, or the reason why there are none."""

    point: str = ""
    requested: dict[str, Any] = {}
    """Those of its options that apply to this row."""
    status: Status = "measured"
    ran: str = ""
    """What ran: the algorithm, or algorithms with how often."""
    ratio: float = 0.0
    """torch's time over its own."""
    times: list[float] = []
    """ms of a run in each round."""
    spread: float | None = None
    """The range of the middle half of the ratios, as a part of the median."""
    ms: float = 0.0
    error: float | None = None
    """Against float64."""
    bound: float | None = None
    workspace: int | None = None
    reason: str = ""
    no_effect: str = ""
    """Which of its options have no effect here, and why."""


class Row(BaseModel):
    """One direction of a layer, or one phase of a model."""

    name: str
    direction: str
    problem: str
    count: int = 1
    baseline: Cell = Cell()
    """torch's own path with what holds for all; empty where it failed."""
    cells: list[Cell] = []
    control: float = 1.0
    """torch over torch again (A/A)."""
    control_spread: float | None = None
    """The range of the middle half of that over the rounds."""
    noisy: bool = False
    """torch differs from itself by too much."""
    rounds: int = 0
    reason: str = ""

    @property
    def label(self) -> str:
        return f"{self.name} {self.direction}"

    @property
    def timed(self) -> list[Cell]:
        """The cells that have a time."""
        return [cell for cell in self.cells if cell.ratio]

    def cell_of(self, point: str) -> Cell | None:
        """The cell of a choice, if it has a time."""
        return next((cell for cell in self.timed if cell.point == point), None)


class Total(BaseModel):
    """A choice on all rows as often as they occur."""

    point: str
    ratio: float
    """torch's time over its own; torch's counts where it has none."""
    error: float | None
    """The largest, as is the workspace."""
    workspace: int
    rows: int
    """In how many rows it has a time."""
    rows_of_torch: int
    """In how many it has none."""


class Result(BaseModel):
    """What msctx compare found."""

    name: str
    subject: dict[str, str]
    source: str
    command: str
    partial: str
    seconds_per_row: float
    error_limit: float | None
    context: dict[str, Any]
    points: list[Point]
    rows: list[Row]
    totals: list[Total] = []
    best: Total | None = None
    """That of the fastest choice that is right in all rows and a gain."""
    recommended: str = ""
    environment: dict[str, Any]

    @property
    def under(self) -> str:
        """What holds for all choices and for torch's own path."""
        return ", ".join(f"{name}={value}" for name, value in self.context.items())

    def as_json(self) -> dict[str, Any]:
        """As result.json holds it: what is not known is left out."""
        return dict(plain(self.model_dump(exclude_unset=True)))


INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Estimate:
    """How many times as fast as torch choices are, how far that may be off, and how far torch is from itself."""

    ratio: float
    margin: float
    noise: float

    @property
    def is_gain(self) -> bool:
        return is_faster(self.ratio, self.margin, self.noise)


def estimate(rows: Sequence[Row], point: str) -> Estimate:
    """A choice over all rows as often as they occur; where it has no time, torch's counts."""
    torchs = own = again = squares = noises = 0.0
    for row in rows:
        if not row.baseline.ms:
            continue
        cell, base = row.cell_of(point), row.count * row.baseline.ms
        off = margin(cell.spread, len(cell.times) or row.rounds) if cell else 0.0
        torchs, own, again = torchs + base, own + base / (cell.ratio if cell else 1.0), again + base / row.control
        squares += (base * off) ** 2
        noises += (base * margin(row.control_spread, row.rounds)) ** 2
    if not own:
        return Estimate(1.0, math.inf, math.inf)
    return Estimate(torchs / own, math.sqrt(squares) / torchs, max(abs(torchs / again - 1), math.sqrt(noises) / torchs))


def result_of(comparison: Comparison, rows: list[Row], environment: Mapping[str, Any], partial: str = "") -> Result:
    """All of it, with what to set as YAML for ``msctx run``."""
    layers, settings = comparison.layers, comparison.base.settings
    given, main = [s for layer in settings.layers for s in layer.settings.values()], explain(settings).main_device
    here = {s.option.name: s.value for s in given if settings.get(s.option.name, main) is s}
    result = Result(
        name=comparison.name,
        subject={comparison.subject: comparison.of},
        source=layers.source if layers else "",
        command=comparison.given.command,
        partial=partial,
        seconds_per_row=comparison.keys["seconds"],
        error_limit=comparison.keys["error_limit"],
        context=here | {s.spelling: s.value for s in given if s.device and s.device != main},
        points=list(comparison.points),
        rows=rows,
        environment=dict(environment),
    )
    result.totals = totals(result)
    can = [{cell.point for cell in row.cells if cell.ratio or cell.status == "no_say"} for row in rows]
    right = [total for total in result.totals if all(total.point in each for each in can)]
    gains = [total for total in right if estimate(rows, total.point).is_gain]
    result.best = max(gains, key=lambda total: total.ratio, default=None)
    if chosen := next((point.options for point in result.points if result.best and point.name == result.best.point), None):
        layer = make_layer(chosen, "axes").settings.values()  # one that is of a single device keeps its spelling
        options = {setting.spelling if setting.device else setting.option.name: setting.value for setting in layer}
        result.recommended = yaml.safe_dump(plain({"context": result.context | options}), sort_keys=False, width=130)
    return result


def totals(result: Result) -> list[Total]:
    """For each choice: the time of all rows as often as they occur, torch's over its own; where it has no time, torch's counts."""
    found = []
    for point in result.points:
        if cells := [cell for row in result.rows if (cell := row.cell_of(point.name))]:
            total = Total(
                point=point.name,
                ratio=estimate(result.rows, point.name).ratio,
                error=max((cell.error for cell in cells if cell.error is not None), default=None),
                workspace=max(cell.workspace or 0 for cell in cells),
                rows=len(cells),
                rows_of_torch=sum(bool(row.cells) for row in result.rows) - len(cells),
            )
            found.append(total)
    return found


def below(result: Result, limit: float) -> list[str]:
    """What is slower than it may be, fails, or has no time anywhere; a choice that cannot run somewhere is left to torch there."""
    speeds = {total.point: total.ratio for total in result.totals}
    found = [f"not everything was measured: {result.partial}"] if result.partial else []
    found += [f"{row.label}: {row.reason}" for row in result.rows if row.reason]
    wrong = [(row, cell) for row in result.rows for cell in row.cells if cell.status in ("failed", "slow")]
    found += [f"{row.label}, {cell.point}: {cell.reason}" for row, cell in wrong]
    slower = [(one.name, speed) for one in result.points if (speed := speeds.get(one.name, 0.0)) < limit]
    return found + [f"{name}: {speed:.2f} of torch's speed" for name, speed in slower]

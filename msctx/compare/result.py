"""What a comparison found: the models that result.json is written from and read into."""

from __future__ import annotations

import csv
import io
from typing import Any, Literal

from pydantic import BaseModel

from msctx.compare.config import Point
from msctx.run.record import plain

Status = Literal["measured", "no_say", "unable", "failed", "slow", "skipped"]
"""no_say: none of its options applies to the row; unable: it cannot run, or has no effect; failed: it raised, or its result
was wrong; slow: it was stopped after its first runs; skipped: there was no time for it."""


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
    """Against float64; null for whole runs."""
    bound: float | None = None
    workspace: int | None = None
    reason: str = ""
    no_effect: str = ""
    """Which of its options have no effect here, and why."""
    metrics: dict[str, Any] = {}


class Row(BaseModel):
    """One direction of a layer, one phase of a model, or a whole run."""

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


class Best(BaseModel):
    """What to take: for layers the best choice of each, of those with the same options beside algorithms; else one for all."""

    ratio: float = 1.0
    points: list[str]
    """For each row; an empty name is torch's own path."""
    options: dict[str, Any] = {}


class Result(BaseModel):
    """What msctx compare found."""

    format: Literal[1]
    name: str
    subject: dict[str, str]
    source: str
    command: str
    partial: str
    interrupted: bool = False
    seconds_per_row: float
    error_limit: float | None
    context: dict[str, Any]
    points: list[Point]
    rows: list[Row]
    totals: list[Total] = []
    best: Best = Best(points=[])
    recommended: str = ""
    environment: dict[str, Any]

    @property
    def under(self) -> str:
        """What holds for all choices and for torch's own path."""
        return ", ".join(f"{name}={value}" for name, value in self.context.items())

    def as_json(self) -> dict[str, Any]:
        """As result.json holds it: what is not known is left out."""
        return dict(plain(self.model_dump(exclude_unset=True)))


COLUMNS = (
    *("name", "direction", "problem", "count", "point", "ran", "ratio", "spread", "ms", "baseline_ms", "error", "bound"),
    *("workspace", "status", "reason", "no_effect"),
)


def as_csv(result: Result) -> str:
    """A line for each cell."""
    text = io.StringIO()
    lines = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    lines.writeheader()
    for row in result.rows:
        head = row.model_dump(include={"name", "direction", "problem", "count"}) | {"baseline_ms": row.baseline.ms or ""}
        for cell in row.cells or [Cell(reason=row.reason)]:
            lines.writerow(head | cell.model_dump(exclude_unset=True))
    return text.getvalue()

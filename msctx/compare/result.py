"""What a comparison found: the models that result.json is written from and read into, and of which its schema is made."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from msctx.compare.grid import DIRECTIONS, PHASES
from msctx.errors import Diagnostic, FileError
from msctx.run.record import plain
from msctx.run.sweep import unformulated

FORMAT: Final = 1
NO_SAY: Final = "no_say"
"""None of its options applies to the row."""
UNABLE: Final = "unable"
"""It cannot run, or is not carried out."""
FAILED: Final = "failed"
"""It raised, or its result was wrong."""
SKIPPED: Final = "skipped"
"""There was no time for it."""
MEASURED: Final = "measured"
Status = Literal["measured", "no_say", "unable", "failed", "skipped"]


class _Part(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True, populate_by_name=True)


class Cell(_Part):
    """One choice in one row: its figures, or the reason why there are none."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["ratio", "error", "spread", "ran"]}, {"required": ["reason"]}]}
    )

    point: str
    """The name of the choice."""
    asked: dict[str, Any]
    """Those of its options that apply to this row."""
    status: Status = MEASURED
    """no_say: none of its options applies to this row; unable: it cannot run, or is not carried out; failed: it raised, or its
    result was wrong; skipped: there was no time for it."""
    ran: str = ""
    """What ran: the algorithm, or algorithms with how often."""
    ratio: float = Field(default=0.0, gt=0, allow_inf_nan=False)
    """torch's time over its own, in the median."""
    measured: list[float] = []
    """Of a row's fastest: the ratios of both times; the smaller one counts."""
    same_as: str | None = None
    """The choice whose figures these are, as it comes to the same kernels; empty: torch's own path."""
    times: list[float] = []
    """Of each round: ms of a run."""
    spread: float | None = None
    """The range of the middle half of the ratios, as a part of the median; null: it was stopped after its first runs."""
    ms: float = 0.0
    error: float | None = None
    """Against float64; null for whole runs."""
    bound: float | None = None
    """The error beyond which it has no time."""
    workspace: int | None = None
    """Bytes that the algorithm takes beside the tensors."""
    peak_bytes: int | None = None
    """The most memory at once that a run took beyond what was there."""
    noisy: bool = False
    reason: str = ""
    """Why it has no time."""
    not_carried_out: str = Field(default="", validation_alias=AliasChoices("not_carried_out", "told"))
    """Which of its options have no effect here, and why; the key was ``told`` before."""
    metrics: dict[str, Any] = {}
    """Of an experiment: what its run returned."""


class Baseline(_Part):
    """torch's own path with what holds for all; empty where it failed."""

    ran: str = ""
    ms: float = 0.0
    error: float | None = None
    peak_bytes: int | None = None
    times: list[float] = []
    """Of each round: ms of a run."""
    metrics: dict[str, Any] = {}


class Row(_Part):
    """One direction of a layer, one phase of a model, or a whole run."""

    name: str
    direction: str = Field(json_schema_extra={"enum": [*DIRECTIONS, "forward", *PHASES, "run"]})
    problem: str
    """Its shapes."""
    count: int = 1
    """How often it occurs."""
    operations: int = 0
    """Multiplications and additions; 0: not counted."""
    baseline: Baseline
    cells: list[Cell]
    control: float = 1.0
    """torch over torch again: how far the machine is to be trusted."""
    control_spread: float | None = None
    """The range of the middle half of that over the rounds."""
    noisy: bool = False
    rounds: int = 0
    reason: str = ""
    """Why nothing was measured."""

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


class PointOptions(_Part):
    """One of the choices."""

    name: str
    options: dict[str, Any]


class Total(_Part):
    """A choice on all rows as often as they occur."""

    point: str
    ratio: float
    """torch's time over its own, without the rows in which it was stopped; torch's counts where it has none."""
    error: float | None
    """The largest."""
    workspace: int
    """The largest."""
    peak_bytes: int
    """The largest."""
    rows: int
    """In how many rows it has a time."""
    rows_of_torch: int
    """In how many it has none."""
    rows_stopped: int = 0
    """In how many it was stopped after its first runs, as it was ten times as slow."""


class Best(_Part):
    """What to take: for layers the best choice of each, of those with the same options beside algorithms; else one for all."""

    ratio: float = 1.0
    points: list[str]
    """For each row; an empty name is torch's own path."""
    options: dict[str, Any] = {}
    """What is recommended, beside the options that hold for all; empty: nothing."""


class CostOfRow(_Part):
    row: int
    cost: float


class Cost(_Part):
    """What determinism costs: a pair of choices that differ in it alone."""

    option: str
    with_: str = Field(validation_alias="with", serialization_alias="with")
    without: str
    geometric_mean: float
    """The time with it over that without."""
    rows: list[CostOfRow]


class Change(_Part):
    """A ratio over that of an earlier result."""

    name: str
    direction: str
    problem: str
    point: str
    change: float | None
    """null: it has no time today."""
    reason: str = ""


class Result(_Part):
    """What msctx compare found."""

    format: Literal[1]
    name: str
    subject: dict[str, str]
    """workload, model or experiment: which."""
    source: str
    """Where a workload's shapes come from."""
    command: str
    """What was typed."""
    partial: str
    """Why rows are missing; empty: none is."""
    load: float | None = None
    """Processes that ran or waited for a processor in the minute before it began; null: the system does not report it."""
    interrupted: bool = False
    """By Ctrl-C."""
    seconds_per_row: float
    error_limit: float | None
    """That was asked for; null: 1e-3, and 0.02 where a choice lowers the precision."""
    context: dict[str, Any]
    """The options that hold for all choices, and for torch's own path."""
    points: list[PointOptions]
    """The choices."""
    rows: list[Row]
    totals: list[Total] = []
    best: Best = Best(points=[])
    costs: list[Cost] = []
    against: list[Change] = []
    elsewhere: list[str] = []
    """In what the machine or the settings of the earlier result differ."""
    recommended: str = ""
    """YAML that msctx run takes."""
    files: dict[str, str] = {}
    """Files that it names: name, text."""
    environment: dict[str, Any]

    @property
    def noise(self) -> str:
        """Why nothing can be recommended: most of the time is in rows that show nothing but noise; empty: it is not."""
        noisy = [row for row in self.rows if row.noisy]
        time, of_noisy = (sum(row.count * row.baseline.ms for row in rows) for rows in (self.rows, noisy))
        if 2 * of_noisy <= time:
            return ""
        load = "" if self.load is None else f" (load before: {self.load:.1f})"
        return f"{len(noisy)} of {len(self.rows)} rows are noisy{load}: repeat the comparison on an idle machine"

    @property
    def under(self) -> str:
        """What holds for all choices and for torch's own path."""
        return ", ".join(f"{name}={value}" for name, value in self.context.items())

    def as_json(self) -> dict[str, Any]:
        """As result.json holds it: what is not known is left out."""
        return dict(plain(self.model_dump(exclude_unset=True, by_alias=True)))


@dataclass
class Outcome:
    """The rows of a comparison, as far as it came."""

    rows: list[Row] = field(default_factory=list)
    partial: str = ""
    """Why rows are missing."""
    interrupted: bool = False
    """By Ctrl-C."""

    def interrupt(self) -> None:
        self.partial, self.interrupted = "interrupted", True


def schema() -> dict[str, Any]:
    """The JSON Schema of result.json."""
    return Result.model_json_schema(by_alias=True)


COLUMNS = (
    *("name", "direction", "problem", "count", "point", "ran", "ratio", "spread", "ms", "baseline_ms", "error", "bound"),
    *("workspace", "peak_bytes", "noisy", "status", "same_as", "reason", "not_carried_out"),
)


def as_csv(result: Result) -> str:
    """A line for each cell."""
    text = io.StringIO()
    lines = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    lines.writeheader()
    for row in result.rows:
        head = row.model_dump(include={"name", "direction", "problem", "count"}) | {"baseline_ms": row.baseline.ms or ""}
        for cell in row.cells or [Cell(point="", asked={}, reason=row.reason)]:
            line: Mapping[str, Any] = head | cell.model_dump(exclude_unset=True)
            lines.writerow({key: unformulated(value) for key, value in line.items()})
    return text.getvalue()


def read(path: str) -> Result:
    """An earlier result.json."""
    try:
        return Result.model_validate_json(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError([Diagnostic("", f"cannot be read: {error.strerror}", path)]) from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        what = ": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))
        text = f"is no result of msctx compare of format {FORMAT}: {what}"
    except UnicodeDecodeError as error:
        text = f"is not UTF-8 text (byte {error.start})"
    raise FileError([Diagnostic("", text, path, suggestion="give the result.json of a comparison")])

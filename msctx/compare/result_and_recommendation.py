"""What a comparison found: its rows, as models for result.json; what follows from them: totals, and the settings to recommend."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import yaml
from pydantic import BaseModel

from msctx.compare.config import Comparison, Point, besides, requested_algorithm
from msctx.compare.layer_workload_file import Product, text
from msctx.compare.timing import is_faster, margin
from msctx.context import explain
from msctx.native.policy_and_choices import ConvProblem
from msctx.options import OPTIONS, make_layer
from msctx.options.algorithm_policy import PRODUCT
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


def estimate(rows: Sequence[Row], points: Sequence[str]) -> Estimate:
    """One choice for each row (``""``: torch's own path), over all rows as often as they occur."""
    torchs = own = again = squares = noises = 0.0
    for row, point in zip(rows, points, strict=True):
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
    result.totals, result.best = totals(result), best(comparison, result)
    if result.best.options:
        whole = {"context": {**result.context, **result.best.options}}
        result.recommended = yaml.safe_dump(plain(whole), sort_keys=False, width=130)
    return result


def totals(result: Result) -> list[Total]:
    """For each choice: the time of all rows as often as they occur, torch's over its own; where it has no time, torch's counts."""
    found = []
    for point in result.points:
        if cells := [cell for row in result.rows if (cell := row.cell_of(point.name))]:
            total = Total(
                point=point.name,
                ratio=estimate(result.rows, [point.name] * len(result.rows)).ratio,
                error=max((cell.error for cell in cells if cell.error is not None), default=None),
                workspace=max(cell.workspace or 0 for cell in cells),
                rows=len(cells),
                rows_of_torch=sum(bool(row.cells) for row in result.rows) - len(cells),
            )
            found.append(total)
    return found


def best(comparison: Comparison, result: Result) -> Best:
    """The fastest plan that is a gain: one choice for all rows; or for layers the best algorithm of each, which rules choose."""
    rows, options = result.rows, {point.name: point.options for point in result.points}
    by_rules = _by_layer(comparison, result) if comparison.layers else []
    can = [{cell.point for cell in row.cells if cell.ratio or cell.status == "no_say"} for row in rows]
    whole = [name for name in options if all(name in each for each in can) and (not by_rules or besides(options[name]))]
    plans = [*([name] * len(rows) for name in whole), *[by_rules] * any(by_rules)]
    gains = [(one.ratio, points) for points in plans if (one := estimate(rows, points)).is_gain]
    if not gains:
        return Best(ratio=1.0, points=[""] * len(rows), options={})
    ratio, points = max(gains, key=lambda gain: gain[0])
    chosen = _rules(comparison, result, points) if points is by_rules else _canonical(options[points[0]])
    return Best(ratio=ratio, points=points, options=chosen)


def _by_layer(comparison: Comparison, result: Result) -> list[str]:
    """For each row the fastest choice that names nothing but algorithms and is a gain there; else torch's own path.

    Layers that no rule can separate share one choice.
    """
    groups: dict[Hashable, list[int]] = {}
    for number, (row, problem) in enumerate(zip(result.rows, _problems(comparison, result), strict=True)):
        groups.setdefault((problem, row.direction), []).append(number)
    names = [point.name for point in result.points if not besides(point.options)]
    chosen = [""] * len(result.rows)
    for numbers in groups.values():
        rows = [result.rows[number] for number in numbers]
        timed = {n: estimate(rows, [n] * len(rows)) for n in names if all(row.cell_of(n) for row in rows)}
        gains = {name: one.ratio for name, one in timed.items() if one.is_gain}
        for number in numbers:
            chosen[number] = max(gains, key=lambda name: gains[name], default="")
    return chosen


def _canonical(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by their own names; one that is of a single device keeps its spelling."""
    settings = make_layer(options, "axes").settings.values()
    return {setting.spelling if setting.device else setting.option.name: setting.value for setting in settings}


def _problems(comparison: Comparison, result: Result) -> list[Any]:
    """The problem of each row as rules see it."""
    assert comparison.layers is not None
    found = {(one.name, str(one.problem)): as_matched(one.problem) for one in comparison.layers.layers}
    return [found[row.name, row.problem] for row in result.rows]


def _rules(comparison: Comparison, result: Result, chosen: Sequence[str]) -> dict[str, Any]:
    """Rules that run the chosen algorithms. Those that were in force when these were measured come first, as they won."""
    options = {point.name: point.options for point in result.points}
    requested: dict[str, dict[str, Any]] = {"conv_algo_rules": {}, "matmul_algo_rules": {}}
    for row, problem, point in zip(result.rows, _problems(comparison, result), chosen, strict=True):
        direction = PRODUCT if row.direction == "forward" else row.direction
        if not (algorithm := requested_algorithm(options.get(point, {}), direction)):
            continue
        if direction == PRODUCT:
            requested["matmul_algo_rules"][_conditions(problem)] = algorithm
        else:
            requested["conv_algo_rules"].setdefault(_conditions(problem), {})[direction] = algorithm
    found: dict[str, Any] = {}
    for name, rules in requested.items():
        first, kind = result.context.get(name), OPTIONS[name].kind
        if rules:
            found[name] = f"{first}; {kind.parse(rules)}" if first and kind else rules
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


def as_matched(problem: ConvProblem | Product) -> ConvProblem | Product:
    """A problem as rules see it, of any batch (``*``): those for which this is equal always get the same algorithms.

    torch.matmul makes rows of leading axes where these share the right factor, else one batch. Strides do not show every layout.
    """
    some: Any = ("*",)
    if isinstance(problem, Product):
        is_one = len(problem.b) == 2
        a, b = some + problem.a[-1 if is_one else -2 :], problem.b if is_one else some + problem.b[-2:]
        return replace(problem, a=a, b=b, b_transposed=problem.b_transposed and _shows_layout(problem))
    return replace(problem, input=some + problem.input[1:], layout=problem.layout if _shows_layout(problem) else "")


def _shows_layout(problem: ConvProblem | Product) -> bool:
    if isinstance(problem, Product):
        return min(problem.b[-2:]) > 1
    _, channels, *image = problem.input
    return len(image) > 1 and channels > 1 and {*image} != {1}


def _conditions(problem: ConvProblem | Product) -> str:
    """All that sets a problem apart from others."""
    if isinstance(problem, Product):
        layout = ("NT" if problem.b_transposed else "NN") if _shows_layout(problem) else ""
        found = {"input": problem.a, "weight": problem.b, "dtype": problem.dtype, "layout": layout}
    else:
        found = asdict(problem)
    shown = {}
    for key, value in found.items():
        if isinstance(value, tuple):
            value = text(value if len({*value}) > 1 or key in ("input", "weight") else value[:1])
        shown[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return " ".join(f"{key}={value}" for key, value in shown.items() if value or key != "layout")

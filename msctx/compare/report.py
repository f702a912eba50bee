"""What follows from the rows of a comparison: totals, the settings to recommend, tables for a terminal, and one HTML page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

import jinja2
import yaml
from rich.table import Table
from rich.text import Text

from msctx.compare.config import Comparison, besides, requested_algorithm
from msctx.compare.result import Best, Cell, Result, Row, Total, is_faster, margin
from msctx.compare.workload_file import Product, text
from msctx.context import explain
from msctx.native.policy_and_choices import ConvProblem
from msctx.options import OPTIONS, make_layer
from msctx.options.algorithm_policy import PRODUCT
from msctx.run.record import plain
from msctx.tables import grid, in_words

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
        format=1,
        name=comparison.name,
        subject={comparison.subject: comparison.of},
        source=layers.source if layers else "",
        command=comparison.given.command,
        partial=partial,
        interrupted=partial == INTERRUPTED,
        seconds_per_row=comparison.keys.seconds,
        error_limit=comparison.keys.error_limit,
        context=here | {s.spelling: s.value for s in given if s.device and s.device != main},
        points=list(comparison.points),
        rows=rows,
        environment={key: value for key, value in environment.items() if key != "argv"},
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


def page(result: Result) -> str:
    """The whole page. Every text that comes from a model or a file is escaped."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters.update(number=_number, bytes=lambda count: in_words(count) if count else "")
    environment.globals.update(kind=kind)
    template = environment.from_string(Path(__file__).with_name("report.html").read_text(encoding="utf-8"))
    return template.render(result=result, picture=_picture(result))


def _number(value: float | None, form: str) -> str:
    """A number in a format; nothing where there is none."""
    return "" if value is None else format(value, form)


def _picture(result: Result) -> str:
    """Layer by choice, by plotly: how many times as fast as torch, and the errors. Empty without plotly."""
    try:
        from plotly.io import to_html
    except ImportError:
        return ""
    rows, points = [row for row in result.rows if row.timed], [point.name for point in result.points]
    cells = [[row.cell_of(point) for point in points] for row in rows]
    trace: dict[str, Any] = {
        "type": "heatmap",
        "z": [[cell and math.log2(cell.ratio) for cell in each] for each in cells],
        "x": [escape(point) for point in points],  # plotly takes texts for HTML
        "y": [escape(row.label) for row in rows],
        "text": [[f"{cell.ratio:.2f}" if cell else "" for cell in each] for each in cells],
        "customdata": [[_number(cell.error, ".1e") if cell else "" for cell in each] for each in cells],
        "texttemplate": "%{text}",
        "hovertemplate": "%{y}<br>%{x}<br>%{text}x, error %{customdata}<extra></extra>",
    } | {"zmid": 0, "zmin": -2, "zmax": 2, "colorscale": "RdBu", "showscale": False}
    layout = {
        "height": 160 + 24 * len(rows),
        "yaxis": {"autorange": "reversed", "automargin": True, "dtick": 1, "type": "category"},
        "xaxis": {"side": "top", "automargin": True, "type": "category"},
    }
    return str(to_html({"data": [trace], "layout": layout}, full_html=False, div_id="picture", config={"responsive": True}))


MANY = 12
"""Lines of reasons."""
TIMES = "torch's time over each choice's ± spread (error)"
WIDE = 5
"""More choices than this do not fit beside each other: the best three of each row are shown."""
SLOWER = 0.97
"""A choice with a smaller ratio is shown as slower than torch."""


def parts(result: Result) -> Iterator[Table | Text]:
    """What is printed one after the other."""
    if result.partial:
        yield Text(f"partial: {result.partial}", style="yellow")
    if result.context:
        yield Text(f"all of it, torch's own path too, with {result.under}", style="dim")
    yield _rows(result)
    if reasons := _reasons(result):
        yield Text("\n".join(["no time, because:", *reasons]), style="dim")
    if result.totals:
        yield _totals(result)
    if result.recommended:
        yield Text(f"what to set:\n{result.recommended}".rstrip(), style="bold")
    elif result.totals:
        text = "what to set: nothing, as no choice that is right everywhere is faster than torch beyond the noise"
        yield Text(text, style="bold")


def _reasons(result: Result) -> list[str]:
    """Why cells have no time: each reason once, with the choices and how many rows it is of."""
    found = Counter(
        (cell.point, cell.reason) for row in result.rows for cell in row.cells if cell.reason and cell.status != "no_say"
    )
    lines = [f"  {point}, {count} row{'s' * (count > 1)}: {reason}" for (point, reason), count in found.items()]
    return lines if len(lines) <= MANY else [*lines[:MANY], f"  … {len(lines) - MANY} more: --out DIR and --json give all"]


def _rows(result: Result) -> Table:
    """All choices beside each other, or the best three of each row."""
    names = [point.name for point in result.points]
    is_whole = len(names) <= WIDE
    columns = [TIMES, "torch, ms (error)", *(names if is_whole else ("best", "second", "third"))]
    lines = []
    for row in result.rows:
        if is_whole:
            cells = [_cell(row, cell) for cell in row.cells]
        else:
            ranked = sorted(row.timed, key=lambda cell: -cell.ratio)[:3]
            cells = [Text.assemble(f"{cell.point} ", _cell(row, cell)) for cell in ranked]
        name = row.label + f" x{row.count}" * (row.count > 1) + " (noisy)" * row.noisy
        torchs = f"{row.baseline.ms:.3g}{_error(row.baseline.error)}" if row.baseline.ms else ""
        lines.append((name, torchs, *(cells or [Text(row.reason or "nothing ran", style="red")])))
    return grid(columns, lines, columns[1:])


def _error(error: float | None) -> str:
    return f" ({error:.0e})" if error is not None else ""


def _cell(row: Row, cell: Cell) -> Text:
    if not cell.ratio:
        return Text("-", style="dim")
    spread = f" ±{cell.spread / 2:.0%}" if cell.spread is not None else ""
    style = {"faster": "green", "slower": "red"}.get(kind(row, cell), "")
    return Text(f"{cell.ratio:.2f}{spread}{_error(cell.error)}", style=style)


def kind(row: Row, cell: Cell) -> str:
    """``faster``, ``slower``, ``none`` where there is no time, or ``""``: within the noise."""
    if not cell.ratio:
        return "none"
    noise = max(abs(row.control - 1), margin(row.control_spread, row.rounds))
    is_gain = is_faster(cell.ratio, margin(cell.spread, len(cell.times) or row.rounds), noise)
    return "faster" if is_gain else "slower" if cell.ratio < SLOWER else ""


def _totals(result: Result) -> Table:
    columns = ("over all rows", "speed", "largest error", "workspace", "rows", "left to torch")
    lines: list[tuple[str | Text, ...]] = []
    for total in sorted(result.totals, key=lambda total: -total.ratio):
        error = f"{total.error:.0e}" if total.error is not None else ""
        memory = in_words(total.workspace) if total.workspace else ""
        lines.append((total.point, f"{total.ratio:.2f}", error, memory, str(total.rows), str(total.rows_of_torch)))
    best = result.best
    if len({*best.points}) > 1:
        left = best.points.count("")
        own = Text("the best of each row", style="bold")
        lines.append((own, f"{best.ratio:.2f}", "", "", str(len(best.points) - left), str(left)))
    return grid(columns, lines, columns[1:])

"""A comparison's result for people: tables for a terminal, and one HTML page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import jinja2
from rich.table import Table
from rich.text import Text

from msctx.compare.result_and_recommendation import Cell, Result, Row
from msctx.compare.timing import is_faster, margin
from msctx.tables import grid, in_words


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
    mixed = [f"  {row.label}, {one.point}: {one.ran}" for row in result.rows for one in row.cells if "torch x" in one.ran]
    if mixed:
        yield Text("\n".join(["torch ran some of the layers:", *mixed[:MANY]]), style="dim")
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

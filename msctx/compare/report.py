"""report.html: a result as one file that opens from disk, with no network: report.html beside this file, filled in by jinja2.

The charts are plotly's; the rest is plain HTML.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import jinja2

from msctx.compare.comparison import EXACT, ROUNDED
from msctx.compare.result import Cell, Result, Row
from msctx.compare.terminal import kind, notes
from msctx.tables import size

Chart = dict[str, Any]
"""Its ``title`` and ``height``, and ``data`` and ``layout`` as plotly has them."""
ROWS = {"autorange": "reversed", "automargin": True, "dtick": 1, "type": "category"}
"""An axis with a name to each line."""


def page(result: Result) -> str:
    """The whole page. Every text that comes from a model or a file is escaped."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        shown, library = {}, ""
    else:
        shown, library = dict(charts(result)), get_plotlyjs()
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters.update(number=_number, bytes=lambda count: size(count) if count else "", text=_text)
    environment.globals.update(kind=kind, notes=notes, no_cell=Cell(point="", asked={}), EXACT=EXACT, ROUNDED=ROUNDED)
    template = environment.from_string(Path(__file__).with_name("report.html").read_text(encoding="utf-8"))
    figures = {key: {"data": chart["data"], "layout": chart["layout"]} for key, chart in shown.items()}
    return template.render(result=result, charts=shown, figures=figures, library=library)


def _number(value: float | None, form: str) -> str:
    """A number in a format; nothing where there is none."""
    return "" if value is None else format(value, form)


def _text(value: Any) -> str:
    return ", ".join(f"{key}: {_text(one)}" for key, one in value.items()) if isinstance(value, dict) else str(value)


def charts(result: Result) -> Iterator[tuple[str, Chart]]:
    rows = [row for row in result.rows if row.timed]
    if rows:
        yield "heat", _heat(result, rows)
    if traces := [trace for point in result.points if (trace := _errors(rows, point.name))["x"]]:
        layout = {
            "xaxis": {"type": "log", "title": {"text": "speed (torch is 1)"}},
            "yaxis": {"type": "log", "title": {"text": "error against float64"}, "exponentformat": "power"},
        }
        yield "scatter", {"title": "Error against speed", "height": 480, "data": traces, "layout": layout}
    if rows:
        yield "bars", _bars(rows)
    if result.costs:
        yield "cost", _cost(result)


def _label(row: Row) -> str:
    """plotly takes texts for HTML."""
    return escape(row.label)


def _heat(result: Result, rows: list[Row]) -> Chart:
    """Layer by choice: how many times as fast as torch."""
    names = [point.name for point in result.points]
    ratios = [[cell.ratio if (cell := row.cell_of(name)) else None for name in names] for row in rows]
    trace = {
        "type": "heatmap",
        "z": [[ratio and math.log2(ratio) for ratio in each] for each in ratios],
        "x": [escape(name) for name in names],
        "y": [_label(row) for row in rows],
        "text": [[_number(ratio, ".2f") for ratio in each] for each in ratios],
        "texttemplate": "%{text}",
        "hovertemplate": "%{y}<br>%{x}<br>%{text}x<extra></extra>",
    } | {"zmid": 0, "zmin": -2, "zmax": 2, "colorscale": "RdBu", "showscale": False}
    layout = {"yaxis": ROWS, "xaxis": {"side": "top", "automargin": True, "type": "category"}}
    title = "Speed by layer and choice, torch's own path is 1"
    return {"title": title, "height": 160 + 24 * len(rows), "data": [trace], "layout": layout}


def _errors(rows: list[Row], point: str) -> dict[str, Any]:
    found = [(row, cell) for row in rows if (cell := row.cell_of(point)) and cell.error]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": escape(point),
        "x": [cell.ratio for _, cell in found],
        "y": [cell.error for _, cell in found],
        "text": [_label(row) for row, _ in found],
        "hovertemplate": "%{text}<br>%{x:.2f}x, error %{y:.1e}",
    }


def _bars(rows: list[Row]) -> Chart:
    """Each row's time with torch and with its fastest choice."""
    best = [max(row.timed, key=lambda cell: cell.ratio) for row in rows]
    fastest = {
        **_bar(rows, [row.baseline.ms / cell.ratio for row, cell in zip(rows, best, strict=True)], "fastest choice"),
        "customdata": [escape(cell.point) for cell in best],
        "hovertemplate": "%{x:.3g} ms<br>%{customdata}<extra></extra>",
    }
    layout = {"barmode": "group", "xaxis": {"title": {"text": "ms, once"}}, "yaxis": ROWS}
    data = [_bar(rows, [row.baseline.ms for row in rows], "torch"), fastest]
    return {"title": "Time of each layer", "height": 140 + 36 * len(rows), "data": data, "layout": layout}


def _cost(result: Result) -> Chart:
    bars = [
        _bar(
            [result.rows[one.row] for one in cost.rows], [one.cost for one in cost.rows], f"{cost.with_} beside {cost.without}"
        )
        for cost in result.costs
    ]
    layout = {"xaxis": {"title": {"text": "time with it over that without"}}, "yaxis": ROWS}
    height = 160 + 24 * max(len(cost.rows) for cost in result.costs)
    return {"title": "What determinism costs, by layer", "height": height, "data": bars, "layout": layout}


def _bar(rows: list[Row], values: list[float], name: str) -> dict[str, Any]:
    return {"type": "bar", "orientation": "h", "name": escape(name), "x": values, "y": [_label(row) for row in rows]}

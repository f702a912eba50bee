"""report.html: a result as one file that opens from disk, with no network: report.html beside this file, filled in by jinja2."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path
from typing import Any

import jinja2

from msctx.compare.result import Result
from msctx.compare.terminal import kind
from msctx.tables import in_words


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

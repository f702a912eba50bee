"""report.html: a result as one file that opens from disk, with no network. The charts are plotly's; the rest is plain HTML."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from msctx.compare.choose import is_gain, measured
from msctx.compare.comparison import EXACT, ROUNDED
from msctx.compare.terminal import notes, under

MISSING = "The charts need plotly: pip install 'msctx[report]', then compare again."


def page(result: Mapping[str, Any]) -> str:
    """The whole page. Every text that comes from a model or a file is escaped."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        charts, library, note = {}, "", MISSING
    else:
        charts, library, note = figures(result), get_plotlyjs(), ""
    template = Template(Path(__file__).with_name("report.html").read_text(encoding="utf-8"))
    return template.substitute(
        name=escape(result["name"]),
        subject=escape(_subject(result)),
        partial=_paragraph(result["partial"] and f"Partial: {result['partial']}.", "warning"),
        note=_paragraph(note, "warning"),
        summary=_summary(result),
        recommended=escape(_recommended(result)),
        totals=_totals(result),
        costs=_costs(result),
        budget=_budget(result) + _against(result),
        head=_head(),
        rows=_rows(result),
        environment=_environment(result),
        command=escape(result["command"]),
        method=_method(result),
        plots="".join(_chart(title, figure, key) for key, (title, figure) in charts.items()),
        library=f"<script>{library}</script>" if library else "",
        data=_embedded({key: figure for key, (_, figure) in charts.items()}),
    )


def _embedded(data: Any) -> str:
    """JSON that may stand inside a script element."""
    return json.dumps(data).replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _paragraph(text: str, kind: str) -> str:
    return f'<p class="{kind}">{escape(text)}</p>' if text else ""


def _subject(result: Mapping[str, Any]) -> str:
    kind, name = next(iter(result["subject"].items()))
    return f"{kind} {name}" + (f" ({result['source']})" if result["source"] else "")


# --- text -------------------------------------------------------------------------------------------------------------


def _summary(result: Mapping[str, Any]) -> str:
    """What to set, what you gain."""
    lines = []
    if result["context"]:
        lines.append(f"All of it, torch's own path too, with {escape(under(result))}.")
    if not result["totals"]:
        lines.append("Nothing could be measured; the table shows why.")
    elif not result["recommended"]:
        lines.append("<b>Leave it to torch</b>: nothing that is right everywhere is faster than its own path beyond the noise.")
    elif "budget" in result:
        gain = result["best"]["ratio"]
        lines.append(f"What is to be set below is <b>{gain:.2f}x</b> as fast as torch's own path, within the budget.")
    else:
        ratio, points = result["best"]["ratio"], set(result["best"]["points"])
        what = f"<b>{escape(points.pop())}</b>" if len(points) == 1 else "The best choice for each row"
        lines.append(f"{what}, set below, is <b>{ratio:.2f}x</b> as fast as torch's own path on the whole.")
    noisy = sum(bool(row.get("noisy")) for row in result["rows"])
    if noisy:
        lines.append(
            f"{noisy} of {len(result['rows'])} rows are noisy: there torch differed from itself, or its times spread widely."
        )
    return "".join(f"<p>{line}</p>" for line in lines)


def _recommended(result: Mapping[str, Any]) -> str:
    files = "".join(f"\n# {name}, beside it:\n{text}" for name, text in result["files"].items())
    return (result["recommended"] or "# Nothing here is faster than torch's own path.") + files


def _error(error: float | None) -> str:
    return f"{error:.1e}" if error is not None else ""


def _totals(result: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{escape(total['point'])}</td><td>{total['ratio']:.2f}x{' (rough)' * (total['rows_stopped'] > 0)}</td>"
        f"<td>{_error(total['error'])}</td>"
        f"<td>{_bytes(total['peak_bytes'])}</td><td>{_bytes(total['workspace'])}</td>"
        f"<td>{total['rows']}</td><td>{total['rows_of_torch']}</td></tr>"
        for total in sorted(result["totals"], key=lambda total: -total["ratio"])
    )
    names = ("choice", "speed", "worst error", "peak memory", "workspace", "rows", "left to torch")
    head = f"<tr>{''.join(f'<th>{name}</th>' for name in names)}</tr>"
    return f"<table>{head}{rows}</table>" if rows else ""


def _costs(result: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{escape(cost['with'])}</td><td>{escape(cost['without'])}</td><td>{cost['geometric_mean']:.2f}x</td>"
        f"<td>{max(row['cost'] for row in cost['rows']):.2f}x</td></tr>"
        for cost in result["costs"]
    )
    head = "<tr><th>with</th><th>beside</th><th>time, mean</th><th>time, worst row</th></tr>"
    return _section("What determinism costs", head + rows) if rows else ""


def _budget(result: Mapping[str, Any]) -> str:
    found = result.get("budget")
    if not found:
        return ""
    title = f"Within an error of {found['budget']:.1e} in {found['phase']}"
    if "reason" in found:
        return f"<section><h2>{title}</h2><p>{escape(found['reason'])}</p></section>"
    each = {"layer by layer": found["per_layer"], f"best for all: {found['uniform']['point'] or 'torch'}": found["uniform"]}
    rows = "".join(
        f"<tr><td>{escape(label)}</td><td>{one['ratio']:.2f}x</td><td>{one['error']:.1e}</td></tr>"
        for label, one in each.items()
    )
    head = "<tr><th>setting</th><th>speed</th><th>error of the whole model</th></tr>"
    return _section(title, head + rows)


def _against(result: Mapping[str, Any]) -> str:
    elsewhere = "".join(f"<p class='warning'>The earlier result: {escape(line)}.</p>" for line in result.get("elsewhere", ()))
    rows = "".join(
        f"<tr><td>{escape(one['name'])} {escape(one['direction'])}</td><td>{escape(one['point'])}</td>"
        f"<td>{one['change']:.2f}</td><td></td></tr>"
        if one["change"] is not None
        else f"<tr><td>{escape(one['name'])} {escape(one['direction'])}</td><td>{escape(one['point'])}</td>"
        f"<td></td><td>{escape(one['reason'])}</td></tr>"
        for one in result.get("against", ())
    )
    head = "<tr><th>layer</th><th>choice</th><th>ratio over the earlier one</th><th>no time now, because</th></tr>"
    return elsewhere + (_section("Beside the earlier result", head + rows) if rows else "")


def _section(title: str, table: str) -> str:
    return f'<section><h2>{title}</h2><div class="wide"><table>{table}</table></div></section>'


def _chart(title: str, figure: Any, key: str) -> str:
    """Its place; the height is the place's own, since a chart that fits itself into its place would else have none."""
    height = figure["layout"].pop("height")
    place = f'<div id="{key}" class="plot" style="height: {height}px"></div>'
    return f'<section><h2>{escape(title)}</h2><div class="wide">{place}</div></section>'


def _head() -> str:
    names = (
        "layer",
        "direction",
        "choice",
        "ran",
        "speed",
        "spread",
        "ms",
        "error",
        "bound",
        "workspace",
        "peak",
        "why not, notes",
    )
    return "".join(f'<th><button type="button">{name}</button></th>' for name in names)


def _rows(result: Mapping[str, Any]) -> str:
    lines = []
    for row in result["rows"]:
        for cell in row["cells"] or [{"point": "", "reason": row.get("reason", "")}]:
            noisy = bool(cell.get("noisy") or row.get("noisy"))
            values: list[tuple[Any, str]] = [
                (row["name"], f"{row['name']}"),
                (row["direction"], row["direction"]),
                (cell["point"], cell["point"]),
                (cell.get("ran", ""), cell.get("ran", "")),
                (cell.get("ratio"), f"{cell['ratio']:.2f}x{' (noisy)' if noisy else ''}" if "ratio" in cell else ""),
                (cell.get("spread"), f"{cell['spread']:.0%}" if cell.get("spread") is not None else ""),
                (cell.get("ms"), f"{cell['ms']:.3g}" if "ms" in cell else ""),
                (cell.get("error"), f"{cell['error']:.1e}" if cell.get("error") is not None else ""),
                (cell.get("bound"), f"{cell['bound']:.1e}" if cell.get("bound") is not None else ""),
                (cell.get("workspace"), _bytes(cell.get("workspace"))),
                (cell.get("peak_bytes"), _bytes(cell.get("peak_bytes"))),
                (cell.get("reason") or "; ".join(notes(cell)),) * 2,
            ]
            cells = "".join(
                f'<td data-value="{escape("" if value is None else str(value))}">{escape(text)}</td>' for value, text in values
            )
            lines.append(f'<tr class="{_class(row, cell)}" title="{escape(row["problem"])}">{cells}</tr>')
    return "\n".join(lines)


def _class(row: Mapping[str, Any], cell: Mapping[str, Any]) -> str:
    if "ratio" not in cell:
        return "none"
    return "faster" if is_gain(row, cell) else "slower" if cell["ratio"] < 0.97 else ""


def _bytes(number: int | None) -> str:
    from msctx.native.rows import size

    return size(number) if number else ""


def _environment(result: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{escape(str(key))}</td><td>{escape(_text(value))}</td></tr>" for key, value in result["environment"].items()
    )
    return f"<table>{rows}</table>"


def _text(value: Any) -> str:
    return ", ".join(f"{k}: {_text(v)}" for k, v in value.items()) if isinstance(value, Mapping) else str(value)


def _method(result: Mapping[str, Any]) -> str:
    if "experiment" in result["subject"]:
        return escape(
            "Each choice is a run of the whole experiment in a process of its own, beside one without any of the choices; the order "
            "changes from round to round. One run of each before them, which tunes, is not counted, unless it was asked for a quick "
            "result. Errors are not known: what the runs returned is in result.json."
        )
    given = result["error_limit"]
    limit = f"{given:g}" if given is not None else f"{EXACT:g} ({ROUNDED:g} where it lowers the precision)"
    return escape(
        "Speed is torch's own time over a choice's in the same round, the median over rounds, each in another order; spread is the "
        "range of the middle half of these ratios. Before that each choice ran some times, which is not counted: to be held against "
        "float64, to tune, compile and prepare weights; and in each turn once and more, until its scope has settled: what entering a "
        "scope costs is not in a figure. A choice whose error is beyond its bound has no time: that of the "
        f"algorithm where it states one, else {limit}, or four times torch's own error where that is more. torch ran against "
        "itself, too: a row is noisy where that is off by over 10 %. Choices that come to the same kernels were measured as one. A "
        "row's fastest choice was measured once more, and the smaller figure counts. A choice ten times slower than torch ran just "
        "twice: its figure is rough, and never a gain. A gain is more than 2 %, than three standard errors of the median, and than "
        "the difference of torch from itself and three standard errors of that. What is to be set is the fastest; of choices that "
        "it does not beat beyond the noise of the two, one that is as exact and sets the fewest options."
    )


# --- charts -----------------------------------------------------------------------------------------------------------

Figure = tuple[str, Any]


def figures(result: Mapping[str, Any]) -> dict[str, Figure]:
    """Element → title and plotly figure as plain data."""
    found = {"heat": _heat(result), "scatter": _scatter(result), "bars": _bars(result)}
    if result["costs"]:
        found["cost"] = _cost(result)
    return {key: figure for key, figure in found.items() if figure is not None}


def _label(row: Mapping[str, Any]) -> str:
    return escape(f"{row['name']} {row['direction']}")


def _plain(figure: Any) -> Any:
    figure.update_layout(template="none")  # colours are the page's
    return json.loads(figure.to_json())


def _heat(result: Mapping[str, Any]) -> Figure | None:
    """Layer by choice: how many times as fast as torch."""
    import plotly.graph_objects as go

    rows = [row for row in result["rows"] if measured(row)]
    if not rows:
        return None
    names = [point["name"] for point in result["points"]]
    values, words = [], []
    for row in rows:
        cells = {cell["point"]: cell for cell in row["cells"]}
        values.append([math.log2(cells[name]["ratio"]) if "ratio" in cells[name] else None for name in names])
        words.append([f"{cells[name]['ratio']:.2f}" if "ratio" in cells[name] else "" for name in names])
    figure = go.Figure(
        go.Heatmap(
            z=values,
            x=[escape(name) for name in names],
            y=[_label(row) for row in rows],
            text=words,
            texttemplate="%{text}",
            zmid=0,
            zmin=-2,
            zmax=2,
            colorscale="RdBu",
            showscale=False,
            hovertemplate="%{y}<br>%{x}<br>%{text}x<extra></extra>",
        )
    )
    figure.update_layout(
        height=160 + 24 * len(rows),
        yaxis={"autorange": "reversed", "automargin": True, "dtick": 1, "type": "category"},
        xaxis={"side": "top", "automargin": True, "type": "category"},
    )
    return "Speed by layer and choice, torch's own path is 1", _plain(figure)


def _scatter(result: Mapping[str, Any]) -> Figure | None:
    import plotly.graph_objects as go

    figure = go.Figure()
    for point in result["points"]:
        found = [
            (cell, row)
            for row in result["rows"]
            for cell in measured(row)
            if cell["point"] == point["name"] and cell.get("error")
        ]
        if found:
            figure.add_trace(
                go.Scatter(
                    x=[cell["ratio"] for cell, _ in found],
                    y=[cell["error"] for cell, _ in found],
                    text=[_label(row) for _, row in found],
                    name=escape(point["name"]),
                    mode="markers",
                    hovertemplate="%{text}<br>%{x:.2f}x, error %{y:.1e}",
                )
            )
    if not figure.data:
        return None
    figure.update_layout(
        height=480,
        xaxis={"type": "log", "title": {"text": "speed (torch is 1)"}},
        yaxis={"type": "log", "title": {"text": "error against float64"}, "exponentformat": "power"},
    )
    return "Error against speed", _plain(figure)


def _bars(result: Mapping[str, Any]) -> Figure | None:
    """Each row's time with torch and with its fastest choice."""
    import plotly.graph_objects as go

    rows = [row for row in result["rows"] if measured(row)]
    if not rows:
        return None
    best = [max(measured(row), key=lambda cell: cell["ratio"]) for row in rows]
    labels = [_label(row) for row in rows]
    figure = go.Figure(
        [
            go.Bar(y=labels, x=[row["baseline"]["ms"] for row in rows], name="torch", orientation="h"),
            go.Bar(
                y=labels,
                x=[row["baseline"]["ms"] / cell["ratio"] for row, cell in zip(rows, best, strict=True)],
                name="fastest choice",
                customdata=[escape(cell["point"]) for cell in best],
                hovertemplate="%{x:.3g} ms<br>%{customdata}<extra></extra>",
                orientation="h",
            ),
        ]
    )
    axis = {"title": {"text": "ms, once"}}
    figure.update_layout(
        height=140 + 36 * len(rows),
        barmode="group",
        xaxis=axis,
        yaxis={"autorange": "reversed", "automargin": True, "dtick": 1, "type": "category"},
    )
    return "Time of each layer", _plain(figure)


def _cost(result: Mapping[str, Any]) -> Figure:
    import plotly.graph_objects as go

    figure = go.Figure()
    for cost in result["costs"]:
        labels = [_label(result["rows"][row["row"]]) for row in cost["rows"]]
        name = escape(f"{cost['with']} beside {cost['without']}")
        figure.add_trace(go.Bar(y=labels, x=[row["cost"] for row in cost["rows"]], name=name, orientation="h"))
    count = max(len(cost["rows"]) for cost in result["costs"])
    axis = {"title": {"text": "time with it over that without"}}
    figure.update_layout(
        height=160 + 24 * count, xaxis=axis, yaxis={"autorange": "reversed", "automargin": True, "dtick": 1, "type": "category"}
    )
    return "What determinism costs, by layer", _plain(figure)

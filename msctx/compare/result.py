"""What a comparison found, as data: result.json, result.csv, the settings that it recommends, and earlier results beside it."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from msctx.compare.comparison import Outcome
from msctx.compare.config import Comparison, pairs
from msctx.compare.grid import DIRECTIONS
from msctx.compare.workload import DEFAULTS, Convolution
from msctx.errors import FileError, Problem
from msctx.run.record import plain

FORMAT = 1
COSTS = ("deterministic", "thread_invariant", "batch_invariant")
"""Options whose cost has a view of its own: the time with them over that without."""


def result_of(comparison: Comparison, outcome: Outcome, environment: Mapping[str, Any]) -> dict[str, Any]:
    """All of it as plain data."""
    found: dict[str, Any] = {
        "format": FORMAT,
        "name": comparison.name,
        "subject": {comparison.subject: comparison.of},
        "source": comparison.layers.source if comparison.layers else "",
        "command": comparison.command,
        "partial": outcome.partial,
        "seconds_per_row": comparison.seconds,
        "error_limit": comparison.error_limit,
        "context": {
            name: setting.value for name in comparison.base.settings if (setting := comparison.base.settings.get(name))
        },
        "points": [{"name": point.name, "options": dict(point.options)} for point in comparison.points],
        "rows": outcome.rows,
        "environment": {key: value for key, value in environment.items() if key != "argv"},
    }
    found["totals"] = totals(found)
    found["best"] = best_per_row(found)
    found["costs"] = costs(comparison, found)
    found["recommended"] = recommended(comparison, found)
    return dict(plain(found))


def measured(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The cells of a row that have a time."""
    return [cell for cell in row["cells"] if "ratio" in cell]


def totals(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For each choice: the time of all rows as often as they occur, torch's over its own; where it has no time, torch's counts."""
    found = []
    for point in result["points"]:
        base = own = 0.0
        worst, count, missing = 0.0, 0, 0
        for row in result["rows"]:
            if not row["baseline"]:
                continue
            cell = next(cell for cell in row["cells"] if cell["point"] == point["name"])
            base += row["count"] * row["baseline"]["ms"]
            own += row["count"] * row["baseline"]["ms"] / cell.get("ratio", 1.0)
            worst = max(worst, cell["error"]) if "ratio" in cell and cell.get("error") is not None else worst
            count += "ratio" in cell
            missing += "ratio" not in cell
        if count:
            found.append({"point": point["name"], "ratio": base / own, "error": worst, "rows": count, "rows_of_torch": missing})
    return found


def best_per_row(result: Mapping[str, Any]) -> dict[str, Any]:
    """The fastest choice of each row (torch's own path where none is faster) and what all of them together gain."""
    base = own = 0.0
    chosen = []
    for row in result["rows"]:
        if not row["baseline"]:
            continue
        cells = [cell for cell in measured(row) if cell["ratio"] > 1 + (cell["spread"] or 0) / 2]  # beyond the noise
        cell = max(cells, key=lambda cell: cell["ratio"], default=None)
        base += row["count"] * row["baseline"]["ms"]
        own += row["count"] * row["baseline"]["ms"] / (cell["ratio"] if cell else 1.0)
        chosen.append(cell["point"] if cell else "")
    return {"ratio": base / own if own else 1.0, "points": chosen}


def costs(comparison: Comparison, result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What determinism costs: for each pair of choices that differ in it alone, the time with it over that without, by row."""
    found = []
    for option in COSTS:
        for one, other, first, second in pairs(comparison.points, option):
            on, off = (one, other) if str(first) in ("ON", "True") else (other, one)
            if str(first if on is one else second) not in ("ON", "True"):
                continue
            rows = []
            for number, row in enumerate(result["rows"]):
                cells = {cell["point"]: cell for cell in measured(row)}
                if on.name in cells and off.name in cells:
                    rows.append({"row": number, "cost": cells[off.name]["ratio"] / cells[on.name]["ratio"]})
            if rows:
                mean = math.exp(sum(math.log(row["cost"]) for row in rows) / len(rows))
                found.append({"option": option, "with": on.name, "without": off.name, "geometric_mean": mean, "rows": rows})
    return found


def recommended(comparison: Comparison, result: Mapping[str, Any]) -> str:
    """YAML that ``msctx run`` takes: for layers ``conv_algo_rules`` with the fastest algorithm of each, else the best choice."""
    context = _options_of_best(result)
    rules: dict[str, dict[str, str]] = {}
    if comparison.layers is not None:
        rules = _rules(comparison, result)
        context = {}
        common = [p["options"] for p in result["points"] if p["name"] in set(result["best"]["points"])]
        for key in {key for options in common for key in options if not key.startswith("conv_") or key.endswith("tf32")}:
            values = [options.get(key) for options in common]
            if all(value == values[0] for value in values):
                context[key] = values[0]
    if rules:
        context["conv_algo_rules"] = rules
    if not context:
        return ""
    return yaml.safe_dump(plain({"context": context}), sort_keys=False, width=130)


def _options_of_best(result: Mapping[str, Any]) -> dict[str, Any]:
    best = max(result["totals"], key=lambda total: total["ratio"], default=None)
    if best is None or best["ratio"] <= 1:
        return {}
    return dict(next(p["options"] for p in result["points"] if p["name"] == best["point"]))


def _rules(comparison: Comparison, result: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Conditions that name a layer's problem → the algorithms that were fastest there."""
    assert comparison.layers is not None
    layers = {layer.name: layer for layer in comparison.layers.layers}
    convolutions = [layer for layer in layers.values() if isinstance(layer, Convolution)]
    by_name = {point["name"]: point["options"] for point in result["points"]}
    rules: dict[str, dict[str, str]] = {}
    chosen = iter(result["best"]["points"])
    for row in result["rows"]:
        if not row["baseline"]:
            continue
        point, layer = next(chosen), layers[row["name"]]
        if row["direction"] not in DIRECTIONS or not isinstance(layer, Convolution):
            continue
        algorithm = by_name.get(point, {}).get(f"conv_{row['direction']}_algo")
        if algorithm:
            rules.setdefault(_condition(layer, convolutions), {})[row["direction"]] = str(algorithm)
    return rules


def _condition(layer: Convolution, layers: Sequence[Convolution]) -> str:
    """A layer's problem whatever the batch: its image, weight and what else sets it apart from the other layers."""

    def along(values: Sequence[int]) -> str:
        return str(values[0]) if len(set(values)) == 1 else "x".join(map(str, values))

    words = [f"input=*x{'x'.join(map(str, layer.input[1:]))}", f"weight={'x'.join(map(str, layer.weight))}"]
    alike = [other for other in layers if (other.input[1:], other.weight) == (layer.input[1:], layer.weight)]
    for field, default in {**DEFAULTS, "groups": 1, "transposed": False}.items():
        value = getattr(layer, field)
        is_default = set(value) == {default} if isinstance(value, tuple) else value == default
        if field != "output_padding" and (not is_default or any(getattr(other, field) != value for other in alike)):
            words.append(f"{field}={along(value) if isinstance(value, tuple) else str(value).lower()}")
    return " ".join(words)


# --- files ------------------------------------------------------------------------------------------------------------

COLUMNS = ("name", "direction", "problem", "count", "point", "ran", "ratio", "spread", "ms", "baseline_ms", "error", "bound")
COLUMNS += ("workspace", "peak_bytes", "noisy", "reason", "told")


def as_csv(result: Mapping[str, Any]) -> str:
    """A line for each cell. A text that a spreadsheet would take for a formula has an apostrophe before it."""
    text = io.StringIO()
    lines = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    lines.writeheader()
    for row in result["rows"]:
        head = {key: row[key] for key in ("name", "direction", "problem", "count")}
        head["baseline_ms"] = row["baseline"].get("ms", "")
        for cell in row["cells"] or [{"point": "", "reason": row.get("reason", "")}]:
            lines.writerow({key: _plain(value) for key, value in {**head, **cell}.items()})
    return text.getvalue()


def _plain(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@\t\r" and value else value


def read(path: str) -> dict[str, Any]:
    """An earlier result.json."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError([Problem("", f"cannot be read: {error.strerror}", path)]) from None
    except (ValueError, RecursionError) as error:
        raise FileError([Problem("", f"is not JSON: {error}", path)]) from None
    if not isinstance(data, dict) or data.get("format") != FORMAT or not isinstance(data.get("rows"), list):
        text = f"is no result of msctx compare of format {FORMAT}"
        raise FileError([Problem("", text, path, suggestion="give the result.json of a comparison")])
    return data


def against(result: Mapping[str, Any], earlier: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each figure of a result beside that of an earlier one: both are ratios to torch in their own run."""
    before = {
        (row["name"], row["direction"], row["problem"], cell["point"]): cell["ratio"]
        for row in earlier["rows"]
        for cell in measured(row)
    }
    found = []
    for row in result["rows"]:
        for cell in measured(row):
            key = (row["name"], row["direction"], row["problem"], cell["point"])
            if key in before:
                change = cell["ratio"] / before[key]
                found.append({**dict(zip(("name", "direction", "problem", "point"), key, strict=True)), "change": change})
    return found


def below(result: Mapping[str, Any], limit: float) -> list[str]:
    """What is slower than it may be: against the earlier result where there is one, else against torch."""
    if "against" in result:
        return [
            f"{one['name']} {one['direction']}, {one['point']}: {one['change']:.2f} of the earlier ratio"
            for one in result["against"]
            if one["change"] < limit
        ]
    return [f"{one['point']}: {one['ratio']:.2f} of torch's speed" for one in result["totals"] if one["ratio"] < limit]

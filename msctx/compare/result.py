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

from msctx.compare import choose
from msctx.compare.choose import measured
from msctx.compare.comparison import FAILED, Outcome
from msctx.compare.config import Comparison, canonical, pairs
from msctx.compare.grid import algorithms
from msctx.compare.layer_rules import as_matched, rules_of
from msctx.compare.workload import Convolution
from msctx.errors import Diagnostic, FileError
from msctx.options.conv_rules import RulesKind
from msctx.run.record import plain
from msctx.run.sweep import unformulated

FORMAT = 1
RULES = "conv_algo_rules"
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
        "interrupted": outcome.interrupted,
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
    found["costs"] = costs(comparison, found)
    found["files"] = {}
    recommend(found, best(comparison, found))
    return dict(plain(found))


def totals(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For each choice: the time of all rows as often as they occur, torch's over its own; where it has no time, torch's counts."""
    found = []
    for point in result["points"]:
        cells = [(row, cell) for row in result["rows"] for cell in row["cells"] if cell["point"] == point["name"]]
        timed = [cell for _, cell in cells if "ratio" in cell]
        if not timed:
            continue
        base = sum(row["count"] * row["baseline"]["ms"] for row, _ in cells)
        own = sum(row["count"] * row["baseline"]["ms"] / cell.get("ratio", 1.0) for row, cell in cells)
        errors = [cell["error"] for cell in timed if cell["error"] is not None]
        head = {"point": point["name"], "ratio": base / own, "error": max(errors, default=None)}
        most = {key: max((cell.get(key) or 0 for cell in timed), default=0) for key in ("workspace", "peak_bytes")}
        stopped = sum(cell["spread"] is None for cell in timed)
        found.append({**head, **most, "rows": len(timed), "rows_of_torch": len(cells) - len(timed), "rows_stopped": stopped})
    return found


def best(comparison: Comparison, result: Mapping[str, Any]) -> dict[str, Any]:
    """What to take: for layers the best choice of each, which rules bring about; else one choice for all rows."""
    rows, points = result["rows"], result["points"]
    plans = choose.for_all(rows, points) if comparison.layers is None else choose.by_row(rows, points, _keys(comparison, rows))
    plan, ratio = choose.best(rows, plans)
    if plan is None:
        return {"ratio": 1.0, "points": [""] * len(rows), "options": {}}
    options = canonical(plan.rest)
    options |= {} if comparison.layers is None else _rules(comparison, result, plan.points, options)
    return {"ratio": ratio, "points": list(plan.points), "options": options}


def recommend(result: dict[str, Any], found: Mapping[str, Any]) -> None:
    """Put down what to take, and the same as YAML for ``msctx run``, with what holds for all; empty: torch's own path."""
    result["best"] = dict(found)
    whole = {"context": {**result["context"], **found["options"]}}
    result["recommended"] = yaml.safe_dump(plain(whole), sort_keys=False, width=130) if found["options"] else ""


def costs(comparison: Comparison, result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What determinism costs: for each pair of choices that differ in it alone, the time with it over that without, by row."""
    found = []
    for option in COSTS:
        for one, other, first, second in pairs(comparison, option):
            on, off = (one, other) if _is_on(first) else (other, one)
            if _is_on(first) == _is_on(second):
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


def _is_on(value: Any) -> bool:
    return str(value).upper() in ("ON", "TRUE", "1", "YES")


def _layers(comparison: Comparison, rows: Sequence[Mapping[str, Any]]) -> list[Convolution | None]:
    """The layer of each row as rules see it; ``None`` where it is no convolution."""
    assert comparison.layers is not None
    layers = {(one.name, str(one)): as_matched(one) for one in comparison.layers.layers if isinstance(one, Convolution)}
    return [layers.get((row["name"], row["problem"])) for row in rows]


def _keys(comparison: Comparison, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Equal for rows that no rule can separate."""
    layers = _layers(comparison, rows)
    return [(layer, row["direction"]) if layer else n for n, (layer, row) in enumerate(zip(layers, rows, strict=True))]


def _rules(comparison: Comparison, result: Mapping[str, Any], chosen: Sequence[str], rest: Mapping[str, Any]) -> dict[str, Any]:
    """conv_algo_rules that run the chosen algorithms. Rules that were in force when these were measured come first, as they won."""
    assert comparison.layers is not None
    options = {point["name"]: point["options"] for point in result["points"]}
    asked: dict[Convolution, dict[str, str]]
    asked = {as_matched(layer): {} for layer in comparison.layers.layers if isinstance(layer, Convolution)}
    for row, layer, point in zip(result["rows"], _layers(comparison, result["rows"]), chosen, strict=True):
        if layer is not None and (algorithm := algorithms(options.get(point, {})).get(row["direction"])):
            asked[layer][row["direction"]] = algorithm
    if not (rules := rules_of(asked)):
        return {}
    first = rest.get(RULES) or result["context"].get(RULES)
    return {RULES: f"{first}; {RulesKind().parse(rules)}" if first else rules}


# --- files ------------------------------------------------------------------------------------------------------------

COLUMNS = (
    *("name", "direction", "problem", "count", "point", "ran", "ratio", "spread", "ms", "baseline_ms", "error", "bound"),
    *("workspace", "peak_bytes", "noisy", "status", "same_as", "reason", "told"),
)


def as_csv(result: Mapping[str, Any]) -> str:
    """A line for each cell."""
    text = io.StringIO()
    lines = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    lines.writeheader()
    for row in result["rows"]:
        head = {key: row[key] for key in ("name", "direction", "problem", "count")}
        head["baseline_ms"] = row["baseline"].get("ms", "")
        for cell in row["cells"] or [{"point": "", "reason": row.get("reason", "")}]:
            lines.writerow({key: unformulated(value) for key, value in {**head, **cell}.items()})
    return text.getvalue()


def read(path: str) -> dict[str, Any]:
    """An earlier result.json."""
    from msctx.compare.schema import fits  # which needs the keys of a comparison's file

    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError([Diagnostic("", f"cannot be read: {error.strerror}", path)]) from None
    except (ValueError, RecursionError) as error:
        raise FileError([Diagnostic("", f"is not JSON: {error}", path)]) from None
    if not fits(data):
        text = f"is no result of msctx compare of format {FORMAT}"
        raise FileError([Diagnostic("", text, path, suggestion="give the result.json of a comparison")])
    return dict(data)


def against(result: Mapping[str, Any], earlier: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each figure of an earlier result beside today's: both are ratios to torch in their own run. ``change`` is today's over the
    earlier one, ``None`` where today there is a ``reason`` instead. Choices that are not asked for today are left out."""
    today = {key: (row, cell) for row in result["rows"] for cell in row["cells"] for key in [_key(row, cell)]}
    rows = {(row["name"], row["direction"], row["problem"]): row for row in result["rows"]}
    points = {point["name"] for point in result["points"]}
    found = []
    for row in earlier["rows"]:
        for cell in measured(row):
            if cell["point"] not in points:
                continue
            key = _key(row, cell)
            head = dict(zip(("name", "direction", "problem", "point"), key, strict=True))
            gone = {"reason": rows.get(key[:3], {}).get("reason") or result["partial"] or "there is no such row today"}
            now = today[key][1] if key in today else gone
            change = now["ratio"] / cell["ratio"] if "ratio" in now else None
            found.append({**head, "change": change} | ({"reason": now["reason"]} if change is None else {}))
    return found


def elsewhere(result: Mapping[str, Any], earlier: Mapping[str, Any]) -> list[str]:
    """In what the machine and the settings of an earlier result differ from today's, so that ratios may, too."""

    def what(one: Mapping[str, Any]) -> dict[str, Any]:
        found = one.get("environment") or {}
        names = {"processor": found.get("cpu"), "instructions": found.get("cpu_capability"), "cores": found.get("cpu_count")}
        libraries = found.get("libraries") or {}
        return {**names, "torch": libraries.get("torch"), "msctx": libraries.get("msctx"), "context": one.get("context")}

    then, now = what(earlier), what(result)
    return [f"{key}: {then[key]}, now {now[key]}" for key in now if then[key] != now[key]]


def _key(row: Mapping[str, Any], cell: Mapping[str, Any]) -> tuple[str, str, str, str]:
    return row["name"], row["direction"], row["problem"], cell["point"]


def below(result: Mapping[str, Any], limit: float) -> list[str]:
    """What is slower than it may be, or has no time: against the earlier result where there is one, else against torch.

    Without an earlier result a choice that cannot run somewhere is left to torch there; one that fails or is wrong is reported.
    """
    partial = [f"not everything was measured: {result['partial']}"] if result["partial"] else []
    if "against" in result:
        if not result["against"]:
            return [*partial, "the earlier result has no row and choice in common with this one"]
        return partial + [
            f"{one['name']} {one['direction']}, {one['point']}: "
            + (
                f"{one['change']:.2f} of the earlier ratio"
                if one["change"] is not None
                else f"had a time, and now: {one['reason']}"
            )
            for one in result["against"]
            if one["change"] is None or one["change"] < limit
        ]
    totals = {total["point"]: total["ratio"] for total in result["totals"]}
    missing = [f"{point['name']}: has no time in any row" for point in result["points"] if point["name"] not in totals]
    broken = [f"{row['name']} {row['direction']}: {row['reason']}" for row in result["rows"] if not row["cells"]]
    broken += [
        f"{row['name']} {row['direction']}, {cell['point']}: {cell['reason']}"
        for row in result["rows"]
        for cell in row["cells"]
        if cell["status"] == FAILED
    ]
    slow = [f"{name}: {ratio:.2f} of torch's speed" for name, ratio in totals.items() if ratio < limit]
    return [*partial, *missing, *broken, *slow]

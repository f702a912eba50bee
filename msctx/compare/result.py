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
from msctx.compare.config import Comparison, canonical, pairs
from msctx.compare.grid import algorithms, besides
from msctx.compare.measure import is_faster
from msctx.compare.workload import DEFAULTS, Convolution
from msctx.errors import FileError, Problem
from msctx.run.record import plain
from msctx.run.sweep import unformulated

FORMAT = 1
NO_SAY = "no option of it speaks of"
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
    found["recommended"], found["files"] = recommended(comparison, found), {}
    return dict(plain(found))


def measured(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The cells of a row that have a time."""
    return [cell for cell in row["cells"] if "ratio" in cell]


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
        found.append({**head, **most, "rows": len(timed), "rows_of_torch": len(cells) - len(timed)})
    return found


def is_gain(row: Mapping[str, Any], cell: Mapping[str, Any]) -> bool:
    """Whether a choice is faster than torch beyond the noise of its row."""
    return "ratio" in cell and is_faster(cell["ratio"], cell["spread"], row["rounds"], row.get("control", 1.0))


def best_per_row(result: Mapping[str, Any]) -> dict[str, Any]:
    """The fastest choice of each row (an empty name: torch's own path, where none is faster beyond noise), and what all gain.

    All are taken from choices with the same options beside algorithms: those that gain most, and are right in all rows of which
    they speak. So what is gained is what one file of settings gains.
    """
    rests: list[dict[str, Any]] = []
    for point in result["points"]:
        if besides(point["options"]) not in rests:
            rests.append(besides(point["options"]))
    found = [_best_with(result, rest) for rest in rests]
    nothing = {"ratio": 1.0, "points": [""] * len(result["rows"]), "besides": {}}
    return max((nothing, *(one for one in found if one is not None)), key=lambda one: one["ratio"])


def _best_with(result: Mapping[str, Any], rest: Mapping[str, Any]) -> dict[str, Any] | None:
    wanted = {point["name"]: point["options"] for point in result["points"] if besides(point["options"]) == rest}
    base = own = 0.0
    chosen = []
    for row in result["rows"]:
        cells = [cell for cell in row["cells"] if cell["point"] in wanted]
        best = max((cell for cell in cells if is_gain(row, cell)), key=lambda cell: cell["ratio"], default=None)
        if rest and best is None and row["cells"]:  # the options hold here, too, whatever they do
            best = max((cell for cell in cells if "ratio" in cell), key=lambda cell: cell["ratio"], default=None)
            if best is None and not all(NO_SAY in cell.get("reason", "") for cell in cells):
                return None
        chosen.append(best["point"] if best else "")
        if row["baseline"]:
            ms = row["count"] * row["baseline"]["ms"]
            base, own = base + ms, own + ms / (best["ratio"] if best else 1.0)
    return {"ratio": base / own, "points": chosen, "besides": dict(rest)} if own else None


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


def recommended(comparison: Comparison, result: Mapping[str, Any]) -> str:
    """YAML that ``msctx run`` takes, with what holds for all: for layers the fastest algorithm of each, else the best choice.

    Empty: nothing is faster than torch's own path beyond the noise, or nothing that is right everywhere.
    """
    if comparison.layers is not None:
        found = {**canonical(result["best"]["besides"]), **_rules(comparison, result)}
        found = found if result["best"]["ratio"] > 1 else {}
    else:
        found = _options_of_best(result)
    if not found:
        return ""
    return yaml.safe_dump(plain({"context": {**result["context"], **found}}), sort_keys=False, width=130)


def _options_of_best(result: Mapping[str, Any]) -> dict[str, Any]:
    """Of choices that are right in every row and faster in one beyond noise, the one that gains most.

    Of those that cannot be told from it for noise, the one with the smallest error: precision is not given away for nothing.
    """
    fits = [
        total
        for total in result["totals"]
        if not total["rows_of_torch"]
        and total["ratio"] > 1
        and any(is_gain(row, cell) for row in result["rows"] for cell in row["cells"] if cell["point"] == total["point"])
    ]
    if not fits:
        return {}
    most = max(total["ratio"] for total in fits)
    spread = max(cell["spread"] or 0.0 for row in result["rows"] for cell in measured(row))
    alike = [total for total in fits if total["ratio"] >= most / (1 + spread / 2)]
    best = min(alike, key=lambda total: (total["error"] or 0.0, -total["ratio"]))
    return canonical(next(p["options"] for p in result["points"] if p["name"] == best["point"]))


def _rules(comparison: Comparison, result: Mapping[str, Any]) -> dict[str, Any]:
    """conv_algo_rules: conditions that name a layer's problem → the algorithms that were fastest there."""
    assert comparison.layers is not None
    convolutions = [layer for layer in comparison.layers.layers if isinstance(layer, Convolution)]
    layers = {(layer.name, str(layer)): layer for layer in convolutions}
    options = {point["name"]: point["options"] for point in result["points"]}
    rules: dict[str, dict[str, str]] = {}
    for row, point in zip(result["rows"], result["best"]["points"], strict=True):
        layer = layers.get((row["name"], row["problem"]))
        if layer is not None and (algorithm := algorithms(options.get(point, {})).get(row["direction"])):
            rules.setdefault(_condition(layer, convolutions), {})[row["direction"]] = algorithm
    return {"conv_algo_rules": rules} if rules else {}


def _condition(layer: Convolution, layers: Sequence[Convolution]) -> str:
    """A layer's problem whatever the batch: its image, weight and what else sets it apart from the other layers."""

    def along(values: Sequence[int]) -> str:
        return str(values[0]) if len(set(values)) == 1 else "x".join(map(str, values))

    words = [f"input=*x{'x'.join(map(str, layer.input[1:]))}", f"weight={'x'.join(map(str, layer.weight))}"]
    alike = [other for other in layers if (other.input[1:], other.weight) == (layer.input[1:], layer.weight)]
    for field, default in {**DEFAULTS, "groups": 1, "transposed": False, "dtype": layer.dtype, "layout": layer.layout}.items():
        value = getattr(layer, field)
        is_default = set(value) == {default} if isinstance(value, tuple) else value == default
        if field != "output_padding" and (not is_default or any(getattr(other, field) != value for other in alike)):
            words.append(f"{field}={along(value) if isinstance(value, tuple) else str(value).lower()}")
    return " ".join(words)


# --- files ------------------------------------------------------------------------------------------------------------

COLUMNS = ("name", "direction", "problem", "count", "point", "ran", "ratio", "spread", "ms", "baseline_ms", "error", "bound")
COLUMNS += ("workspace", "peak_bytes", "noisy", "reason", "failed", "told")


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
        raise FileError([Problem("", f"cannot be read: {error.strerror}", path)]) from None
    except (ValueError, RecursionError) as error:
        raise FileError([Problem("", f"is not JSON: {error}", path)]) from None
    if not fits(data):
        text = f"is no result of msctx compare of format {FORMAT}"
        raise FileError([Problem("", text, path, suggestion="give the result.json of a comparison")])
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

    Without an earlier result a choice that cannot run somewhere is left to torch there; one that fails or is wrong is told.
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
        if cell.get("failed")
    ]
    slow = [f"{name}: {ratio:.2f} of torch's speed" for name, ratio in totals.items() if ratio < limit]
    return [*partial, *missing, *broken, *slow]

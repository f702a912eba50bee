"""A whole experiment as the subject: each choice is a run in a process of its own, and its result is what the run returned."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msctx.compare.comparison import TORCH, Watch, counted
from msctx.compare.config import Comparison, combined
from msctx.compare.result import FAILED, MEASURED, SKIPPED, UNABLE, Baseline, Cell, Outcome, Row
from msctx.native.children import Children
from msctx.run.sweep import run_point, why, words_of

OUR_KEYS = {"status", "started", "seconds", "restored", "run_dir", "error", "left_changed"}


def compare(comparison: Comparison, watch: Watch | None = None) -> Outcome:
    """One row: the time of the whole run. Between the points the order changes from round to round.

    Each choice runs once before, to warm up and to tune, which is not counted; with ``--quick`` it runs just once.
    """
    watch = watch or Watch()
    choices: dict[str, Mapping[str, Any]] = {TORCH: {}, **{point.name: point.options for point in comparison.points}}
    impossible = combined(comparison.points)
    rounds = comparison.keys.repetitions
    first = 0 if comparison.total is not None else -1
    watch.begin((rounds - first) * len(choices))
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in choices}
    outcome = Outcome()
    deadline = None if comparison.total is None else time.perf_counter() + comparison.total
    given = [*_of_file(comparison), *comparison.overrides]
    with tempfile.TemporaryDirectory(prefix="msctx-compare-") as folder, Children(Path(folder)) as children:
        try:
            for number in range(first, rounds):
                order = list(choices) if number % 2 == 0 else list(reversed(choices))
                for name in order:
                    watch.row(name or "torch")
                    if deadline is not None and time.perf_counter() > deadline:
                        outcome.partial = (
                            f"--quick ends after {comparison.total:.0f} seconds; leave it out to run the other choices, too"
                        )
                    elif name not in impossible and not _has_failed(found[name]) and not _has_failed(found[TORCH]):
                        place = Path(folder) / f"{number}-{list(choices).index(name)}"
                        result = run_point(children, comparison.of, [*given, *words_of(choices[name])], place)
                        result["ran"] = _what_ran(place)
                        if number >= 0 or result["status"] != "completed":
                            found[name].append(result)
                    watch.end_row()
        except KeyboardInterrupt:
            outcome.interrupt()
    outcome.rows.append(_row(comparison, found, impossible, outcome.partial or "it did not run"))
    return outcome


def _of_file(comparison: Comparison) -> list[str]:
    """What the comparison's own file sets for all runs, where it is not the experiment's."""
    if comparison.file is None or str(comparison.file) == comparison.of:
        return []
    found: dict[tuple[str, str | None], tuple[str, Any]] = {}
    for level in ("preset", "yaml"):
        layer = comparison.base.levels.get(level)
        for setting in layer.settings.values() if layer else ():
            found[setting.option.name, setting.device] = setting.spelling, setting.value
    return words_of(dict(found.values()))


def _row(comparison: Comparison, found: Mapping[str, list[dict[str, Any]]], impossible: Mapping[str, str], late: str) -> Row:
    row = Row(name=comparison.of, direction="run", problem="a whole run", count=1, operations=0, baseline=Baseline(), cells=[])
    plain = _seconds(found[TORCH])
    if not plain:
        row.reason = _why(found[TORCH], late)
        return row
    row.baseline = Baseline(ms=statistics.median(plain) * 1e3, error=None, **_shown(found[TORCH]))
    row.rounds = len(plain)
    for point in comparison.points:
        runs = found[point.name]
        own = _seconds(runs)[: len(plain)]  # of rounds that both have, where it was interrupted
        cell = Cell(point=point.name, asked=dict(point.options), status=MEASURED)
        row.cells.append(cell)
        if point.name in impossible:
            cell.status, cell.reason = UNABLE, impossible[point.name]
        elif not own or _has_failed(runs):
            cell.status, cell.reason = FAILED if _has_failed(runs) else SKIPPED, _why(runs, late)
        else:
            ratios = [a / b for a, b in zip(plain, own, strict=False)]
            cell.ratio, cell.ms, cell.error = statistics.median(ratios), statistics.median(own) * 1e3, None
            cell.spread = (max(ratios) - min(ratios)) / cell.ratio if len(ratios) > 1 else None
            cell.times = [seconds * 1e3 for seconds in own]
            row.cells[-1] = cell.model_copy(update=_shown(runs))
    return row


def _shown(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """What the first run computed, took and returned."""
    first = runs[0]
    metrics = {
        key: value for key, value in first.items() if key not in OUR_KEYS | {"ran"} and isinstance(value, int | float | str)
    }
    return {"ran": first.get("ran", ""), "peak_bytes": first.get("peak_memory_bytes"), "metrics": metrics}


def _seconds(results: list[dict[str, Any]]) -> list[float]:
    return [max(float(result["seconds"]), 1e-3) for result in results if result.get("status") == "completed"]


def _has_failed(results: list[dict[str, Any]]) -> bool:
    return any(result.get("status") != "completed" for result in results)


def _why(results: list[dict[str, Any]], late: str) -> str:
    """Why there is no time: the error of the run that failed, or *late*, why none was made."""
    return next((why(result) for result in results if result.get("status") != "completed"), late)


def _what_ran(folder: Path) -> str:
    try:
        rows = json.loads((folder / "choices.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "torch"
    ran = Counter[str]()
    for row in rows:
        ran[row["ran"]] += row["calls"]
    return counted(ran)

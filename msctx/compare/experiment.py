"""A whole experiment as the subject: each choice is a run in a process of its own, and its time is that of the run."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msctx.compare.comparison import AGAIN, TORCH, Watch, fill
from msctx.compare.config import Comparison
from msctx.compare.measure import ratio_between
from msctx.compare.result import Cell, Result, Row
from msctx.compare.summary import INTERRUPTED, result_of
from msctx.inspection import environment
from msctx.native.children import Children
from msctx.run.sweep import run_point, why, words_of

OUR_KEYS = {"status", "started", "seconds", "restored", "run_dir", "error", "left_changed"}
Runs = Mapping[str, list[dict[str, Any]]]
"""Choice → the results of its runs."""


def run(comparison: Comparison, watch: Watch) -> Result:
    """One row: the time of the whole run. Between the points the order changes from round to round.

    Each choice runs once before, to warm up and to tune, which is not counted; with ``--quick`` it runs just once.
    """
    choices: dict[str, Mapping[str, Any]] = {TORCH: {}, AGAIN: {}, **{one.name: one.options for one in comparison.points}}
    first = 0 if comparison.total is not None else -1
    runs = [
        (number, name)
        for number in range(first, comparison.keys.repetitions)
        for name in list(choices)[:: 1 if number % 2 == 0 else -1]
    ]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in choices}
    partial, late = "", f"--quick ends after {comparison.total or 0:.0f} seconds; leave it out to run the other choices, too"
    deadline = None if comparison.total is None else time.perf_counter() + comparison.total
    with tempfile.TemporaryDirectory(prefix="msctx-compare-") as folder, Children(Path(folder)) as children:
        try:
            for done, (number, name) in enumerate(runs):
                watch(done, len(runs), {TORCH: "torch", AGAIN: "torch again"}.get(name, name))
                if deadline is not None and time.perf_counter() > deadline:
                    partial = late
                elif not _failure(found[name]) and not _failure(found[TORCH]):
                    words = [*comparison.overrides, *words_of(choices[name])]
                    result = run_point(children, comparison.of, words, Path(folder, str(done)))
                    if number >= 0 or result["status"] != "completed":
                        found[name].append(result)
        except KeyboardInterrupt:
            partial = INTERRUPTED
    return result_of(comparison, [_row(comparison, found, partial or "it did not run")], environment(), partial)


def _row(comparison: Comparison, found: Runs, late: str) -> Row:
    row = Row(name=comparison.of, direction="run", problem="a whole run")
    plain, again = _seconds(found[TORCH]), _seconds(found[AGAIN])
    if not plain or not again:
        row.reason = _failure(found[TORCH]) or _failure(found[AGAIN]) or late
        return row
    timed, cells = {}, []
    for name, runs in found.items():
        cell = Cell(point=name, asked=next((dict(one.options) for one in comparison.points if one.name == name), {}))
        cell.metrics = {
            key: one for key, one in (runs or [{}])[0].items() if key not in OUR_KEYS and isinstance(one, int | float | str)
        }
        if reason := _failure(runs):
            cell.status, cell.reason = "failed", reason
        elif not runs:
            cell.status, cell.reason = "skipped", late
        else:
            timed[name] = ratio_between(plain, _seconds(runs))
            cell.status = "measured"
        cells.append(cell)
    fill(row, cells[0], cells[2:], timed)
    return row


def _seconds(results: list[dict[str, Any]]) -> list[float]:
    return [max(float(result["seconds"]), 1e-3) for result in results if result.get("status") == "completed"]


def _failure(results: list[dict[str, Any]]) -> str:
    """The error of the run that failed, if one did."""
    return next((why(result) for result in results if result.get("status") != "completed"), "")

"""A result on a terminal."""

from __future__ import annotations

from typing import Any

from msctx.compare import terminal
from msctx.native.rows import plain


def result(points: list[str], **more: Any) -> dict[str, Any]:
    cells = [{"point": name, "ratio": 1.0 + number, "error": 1e-6, "spread": 0.1} for number, name in enumerate(points)]
    cells[0]["spread"] = None
    cells[-1] = {"point": points[-1], "reason": "it cannot"}
    head = {"name": "[b]first[/b]", "direction": "fprop", "problem": "", "count": 3, "noisy": True, "rounds": 9, "cells": cells}
    rows = [
        {**head, "baseline": {"ms": 12.0, "error": 1e-7}},
        {**head, "name": "none", "baseline": {}, "cells": [], "reason": "no memory"},
    ]
    memory = {"peak_bytes": 3 << 20, "workspace": 5 << 10}
    totals = [{"point": points[0], "ratio": 1.5, "error": 1e-6, "rows": 1, "rows_of_torch": 0, "rows_stopped": 1, **memory}]
    base = {
        "partial": "",
        "points": [{"name": name} for name in points],
        "rows": rows,
        "totals": totals,
        "costs": [],
        "context": {"seed": 1},
    }
    return {**base, "best": {"ratio": 2.0, "points": [points[0], ""]}, "recommended": "context: {}\n", "files": {}, **more}


def text(found: dict[str, Any]) -> str:
    return "\n".join(plain(part) for part in terminal.parts(found))


def test_few_choices_stand_beside_each_other() -> None:
    shown = text(result(["a", "b", "c"]))
    assert "[b]first[/b] fprop x3 (noisy)" in shown, "names are no markup"
    assert "12 (1e-07)" in shown
    assert "1.00 (rough) (1e-06)" in shown
    assert "1.50 (rough)" in shown
    assert "2.00 ±5% (1e-06)" in shown
    assert "3.0 MB" in shown
    assert "5.0 KB" in shown
    assert "no memory" in shown
    assert "the best of each row" in shown
    assert "what to set:" in shown


def test_of_many_the_best_three() -> None:
    shown = text(result([f"choice{number}" for number in range(9)]))
    assert "choice7 8.00 ±5%" in shown
    assert "choice5 6.00 ±5%" in shown
    assert "choice4" not in shown


def test_what_else_is_told() -> None:
    layer, one = {"ratio": 1.5, "error": 1e-5, "float32": ["0"]}, {"point": "", "ratio": 1.0, "error": 1e-7}
    shown = text(
        result(
            ["a", "b"],
            partial="interrupted",
            elsewhere=["processor: A, now B"],
            budget={"budget": 1e-4, "phase": "inference", "per_layer": layer, "uniform": one},
            costs=[{"with": "a", "without": "b", "geometric_mean": 1.25, "rows": [{}]}],
            against=[{"name": "first", "direction": "fprop", "point": "a", "change": 0.5}],
        )
    )
    assert "partial: interrupted" in shown
    assert "all of it, torch's own path too, with seed=1" in shown
    assert "the earlier result is of another machine or setting: processor: A, now B" in shown
    assert (
        "within an error of 1.0e-04 in inference: layer by layer 1.50x (error 1.0e-05, 1 of its layers in float32), "
        "the best for all (torch) 1.00x" in shown
    )
    assert "b, 1 row: it cannot" in shown
    assert "a takes 1.25 times as long as b" in shown
    assert "first fprop, a: 0.50 of the earlier ratio" in shown

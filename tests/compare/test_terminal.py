"""A result on a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from comparisons import SMALL, cell, made, result, row
from rich.text import Text

from msctx.compare import terminal
from msctx.compare.result import Best, Change, Cost, CostOfRow, Total
from msctx.tables import plain


def text(tmp_path: Path, points: list[str], **more: Any) -> str:
    """All that is printed: the first choice was stopped early, the last cannot run."""
    sets = "".join(f"    {name}: {{deterministic: ON}}\n" for name in points)
    cells = [cell(name, 1.0 + number, spread=0.1) for number, name in enumerate(points)]
    cells[0].spread, cells[-1] = None, cell(points[-1])
    of = made(tmp_path, f"{SMALL}context: {{seed: 1}}\naxes:\n  way:\n{sets}")
    found = result(
        of,
        row("[b]first[/b]", cells, 3, 12.0, noisy="load" in more),
        row("none", [], baseline={}, reason="no memory"),
        partial="interrupted",
    )
    memory = {"peak_bytes": 3 << 20, "workspace": 5 << 10}
    found.totals = [Total(point=points[0], ratio=1.5, error=1e-6, rows=1, rows_of_torch=0, rows_stopped=1, **memory)]
    found.best, found.recommended = Best(ratio=2.0, points=[points[0], ""]), "context: {}\n"
    return "\n".join(
        str(part) if isinstance(part, Text) else plain(part) for part in terminal.parts(found.model_copy(update=more))
    )


def test_few_choices_stand_beside_each_other_and_all_else_is_said(tmp_path: Path) -> None:
    shown = text(
        tmp_path,
        ["a", "b", "c"],
        elsewhere=["processor: A, now B"],
        costs=[
            Cost.model_validate(
                {"option": "", "with": "a", "without": "b", "geometric_mean": 1.25, "rows": [CostOfRow(row=0, cost=1.25)]}
            )
        ],
        against=[Change(name="first", direction="fprop", problem="", point="a", change=0.5)],
    )
    for part in (
        *("[b]first[/b] fprop x3", "12 (1e-07)", "1.00 (rough) (1e-06)", "1.50 (rough)", "2.00 ±5% (1e-06)"),
        *("3.0 MB", "5.0 KB", "no memory", "the best of each row", "what to set:", "partial: interrupted"),
        "all of it, torch's own path too, with seed=1",
        "the earlier result is of another machine or setting: processor: A, now B",
        *("c, 1 row: it cannot", "a takes 1.25 times as long as b", "first fprop, a: 0.50 of the earlier ratio"),
    ):
        assert part in shown, part


def test_noise_stands_where_the_advice_would(tmp_path: Path) -> None:
    noise = "what to set: unknown. 1 of 2 rows are noisy (load before: 7.0): repeat the comparison on an idle machine"
    assert noise in " ".join(text(tmp_path, ["a", "b", "c"], load=7.0, recommended="").split())


def test_of_many_the_best_three(tmp_path: Path) -> None:
    shown = text(tmp_path, [f"choice{number}" for number in range(9)])
    assert "choice7 8.00 ±5%" in shown
    assert "choice5 6.00 ±5%" in shown
    assert "choice4" not in shown

"""How rows of what ran look on a terminal."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from msctx.native.choices import Choice

WIDTH = 200


def table(rows: Iterable[Choice]) -> Table:
    """A row for each problem; under it, why those ahead of what ran did not run."""
    grid = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    rows = [*rows]
    kept = ("kept",) if any(row.weights_kept for row in rows) else ()
    for column in ("direction", "problem", "asked", "ran", "by", "math", "error", "workspace", "calls", *kept):
        right = column in ("error", "workspace", "calls", "kept")
        grid.add_column(column, justify="right" if right else "left", overflow="fold")
    for row in rows:
        problem = Text(f"{row.module}: " * bool(row.module) + str(row.problem))
        problem.append("".join(f"\n  {reason}" for reason in row.reasons), "dim")
        error = f"{row.error:.1e}" if row.error else ""
        counted = (str(row.calls), str(row.weights_kept)) if kept else (str(row.calls),)
        grid.add_row(row.direction, problem, row.asked, row.ran, row.provider, row.math, error, size(row.workspace), *counted)
    return grid


def of_rows(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    grid = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for column in columns:
        grid.add_column(column, justify="right" if column in ("calls", "casts") else "left", overflow="fold")
    for row in rows:
        grid.add_row(*row)
    return grid


def size(number: int) -> str:
    """A number of bytes for people."""
    for unit, one in (("GB", 2**30), ("MB", 2**20), ("KB", 2**10)):
        if number >= one:
            return f"{number / one:.1f} {unit}"
    return str(number)


def plain(grid: Table) -> str:
    """A table as text without colours."""
    stream = io.StringIO()
    Console(file=stream, width=WIDTH, color_system=None).print(grid)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines() if line.strip())

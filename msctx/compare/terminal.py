"""A result on a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich import box
from rich.table import Table
from rich.text import Text

from msctx.compare.choose import is_gain
from msctx.compare.result import Cell, Result, Row
from msctx.compare.summary import changed
from msctx.tables import size

MANY = 12
"""Lines of reasons."""
TIMES = "torch's time over each choice's ± spread (error)"
WIDE = 5
"""More choices than this do not fit beside each other: the best three of each row are shown."""
SLOWER = 0.97
"""A choice with a smaller ratio is shown as slower than torch."""


def parts(result: Result) -> Iterator[Table | Text]:
    """What is printed one after the other."""
    if result.partial:
        yield Text(f"partial: {result.partial}", style="yellow")
    if result.context:
        yield Text(f"all of it, torch's own path too, with {result.under}", style="dim")
    yield _matrix(result) if len(result.points) <= WIDE else _best(result)
    if reasons := _reasons(result):
        yield Text("\n".join(["no time, because:", *reasons]), style="dim")
    if result.totals:
        yield _totals(result)
    for cost in result.costs:
        times = f"{cost.geometric_mean:.2f} times as long as"
        yield Text(f"{cost.with_} takes {times} {cost.without} (mean of {len(cost.rows)} rows)")
    for line in result.elsewhere:
        yield Text(f"the earlier result is of another machine or setting: {line}", style="yellow")
    for one in result.against:
        if one.change is None or abs(one.change - 1) > 0.05:
            yield Text(f"{one.name} {one.direction}, {one.point}: {changed(one)}")
    if result.recommended:
        yield Text(f"what to set:\n{result.recommended}".rstrip(), style="bold")
    elif result.totals and result.noise:
        yield Text(f"what to set: unknown. {result.noise}", style="bold yellow")
    elif result.totals:
        text = "what to set: nothing, as no choice that is right everywhere is faster than torch beyond the noise"
        yield Text(text, style="bold")
    for name, text in result.files.items():
        yield Text(f"{name}, beside it:\n{text}".rstrip(), style="bold")


def _reasons(result: Result) -> list[str]:
    """Why cells have no time: each reason once, with the choices and how many rows it is of."""
    found = Counter((cell.point, cell.reason) for row in result.rows for cell in row.cells if cell.reason)
    lines = [f"  {point}, {count} row{'s' * (count > 1)}: {reason}" for (point, reason), count in found.items()]
    return lines if len(lines) <= MANY else [*lines[:MANY], f"  … {len(lines) - MANY} more: --out DIR and --json give all"]


def _grid(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(Text(column), justify="right" if number else "left", overflow="fold")
    return table


def _head(row: Row) -> list[Text]:
    name = row.label + f" x{row.count}" * (row.count > 1) + " (noisy)" * row.noisy
    return [Text(name), Text(f"{row.baseline.ms:.3g}{_error(row.baseline.error)}" if row.baseline.ms else "")]


def _error(error: float | None) -> str:
    return f" ({error:.0e})" if error is not None else ""


def _cell(row: Row, cell: Cell) -> Text:
    if not cell.ratio:
        return Text("-", style="dim")
    if cell.same_as is not None:
        return Text(f"= {cell.same_as or 'torch'}{_error(cell.error)}", style="dim")
    spread = f" ±{cell.spread / 2:.0%}" if cell.spread is not None else " (rough)"
    return Text(
        f"{cell.ratio:.2f}{spread}{_error(cell.error)}", style={"faster": "green", "slower": "red"}.get(kind(row, cell), "")
    )


def kind(row: Row, cell: Cell) -> str:
    """``faster``, ``slower``, ``none`` where there is no time, or ``""``: within the noise."""
    if not cell.ratio:
        return "none"
    return "faster" if is_gain(row, cell) else "slower" if cell.ratio < SLOWER else ""


def notes(cell: Cell) -> str:
    """What is to be known of a cell that has a time."""
    same = [f"the same as {cell.same_as or 'torch'}: measured as one"] if cell.same_as is not None else []
    return "; ".join(same + [cell.not_carried_out] * bool(cell.not_carried_out))


def _matrix(result: Result) -> Table:
    names = [point.name for point in result.points]
    table = _grid(TIMES, "torch, ms (error)", *names)
    for row in result.rows:
        cells = {cell.point: cell for cell in row.cells}
        table.add_row(*_head(row), *([_cell(row, cells[name]) for name in names] if cells else [Text(row.reason, style="red")]))
    return table


def _best(result: Result) -> Table:
    table = _grid(TIMES, "torch, ms (error)", "best", "second", "third")
    for row in result.rows:
        ranked = sorted((cell for cell in row.timed if cell.same_as is None), key=lambda cell: -cell.ratio)[:3]
        cells = [Text.assemble(f"{cell.point} ", _cell(row, cell)) for cell in ranked]
        table.add_row(*_head(row), *(cells or [Text(row.reason or "nothing ran")]))
    return table


def _totals(result: Result) -> Table:
    table = _grid("on the whole", "speed", "worst error", "peak memory", "workspace", "rows", "left to torch", "stopped")
    for total in sorted(result.totals, key=lambda total: -total.ratio):
        numbers = (
            f"{total.ratio:.2f}" + " (rough)" * (total.rows_stopped == total.rows),
            f"{total.error:.0e}" if total.error is not None else "",
            size(total.peak_bytes) if total.peak_bytes else "",
            size(total.workspace) if total.workspace else "",
            str(total.rows - total.rows_stopped),
            str(total.rows_of_torch),
            str(total.rows_stopped or ""),
        )
        table.add_row(Text(total.point), *numbers)
    best = result.best
    if len({*best.points}) > 1:
        left = best.points.count("")
        numbers = (f"{best.ratio:.2f}", "", "", "", str(len(best.points) - left), str(left), "")
        table.add_row(Text("the best of each row", style="bold"), *numbers)
    return table

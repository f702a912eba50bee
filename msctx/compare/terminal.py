"""A result on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from msctx.compare.choose import is_gain, measured
from msctx.native.rows import size

MANY = 12
"""Lines of reasons."""
TIMES = "torch's time over each choice's ± spread (error)"
WIDE = 5
"""More choices than this do not fit beside each other: the best three of each row are shown."""


def parts(result: Mapping[str, Any]) -> Iterator[Any]:
    """What is printed one after the other."""
    if result["partial"]:
        yield Text(f"partial: {result['partial']}", style="yellow")
    if result["context"]:
        yield Text(f"all of it, torch's own path too, with {under(result)}", style="dim")
    names = [point["name"] for point in result["points"]]
    yield _matrix(result, names) if len(names) <= WIDE else _best(result)
    if told := _reasons(result):
        yield Text("\n".join(["no time, because:", *told]), style="dim")
    if result["totals"]:
        yield _totals(result)
    for cost in result["costs"]:
        times = f"{cost['geometric_mean']:.2f} times as long as"
        yield Text(f"{cost['with']} takes {times} {cost['without']} (mean of {len(cost['rows'])} rows)")
    if found := result.get("budget"):
        yield Text(f"within an error of {found['budget']:.1e} in {found['phase']}: {_budget(found)}")
    for line in result.get("elsewhere", ()):
        yield Text(f"the earlier result is of another machine or setting: {line}", style="yellow")
    for one in result.get("against", ()):
        if one["change"] is None or abs(one["change"] - 1) > 0.05:
            now = (
                f"{one['change']:.2f} of the earlier ratio"
                if one["change"] is not None
                else f"had a time, now: {one['reason']}"
            )
            yield Text(f"{one['name']} {one['direction']}, {one['point']}: {now}")
    if result["totals"] and not result["recommended"]:
        yield Text(
            "what to set: nothing, as no choice that is right everywhere is faster than torch beyond the noise", style="bold"
        )
    if result["recommended"]:
        yield Text(f"what to set:\n{result['recommended']}".rstrip(), style="bold")
    for name, text in result["files"].items():
        yield Text(f"{name}, beside it:\n{text}".rstrip(), style="bold")


def under(result: Mapping[str, Any]) -> str:
    """What holds for all choices and for torch's own path."""
    return ", ".join(f"{name}={value}" for name, value in result["context"].items())


def _budget(found: Mapping[str, Any]) -> str:
    if "reason" in found:
        return str(found["reason"])
    layer, one = found["per_layer"], found["uniform"]
    best = f"the best for all ({one['point'] or 'torch'}) {one['ratio']:.2f}x (error {one['error']:.1e})"
    kept = f", {len(layer['float32'])} of its layers in float32" * bool(layer["float32"])
    return f"layer by layer {layer['ratio']:.2f}x (error {layer['error']:.1e}{kept}), {best}"


def _reasons(result: Mapping[str, Any]) -> list[str]:
    """Why cells have no time: each reason once, with the choices and how many rows it is of."""
    found: dict[tuple[str, str], int] = {}
    for row in result["rows"]:
        for cell in row["cells"]:
            if "reason" in cell:
                key = cell["point"], cell["reason"]
                found[key] = found.get(key, 0) + 1
    lines = [f"  {point}, {count} row{'s' * (count > 1)}: {reason}" for (point, reason), count in found.items()]
    return lines if len(lines) <= MANY else [*lines[:MANY], f"  … {len(lines) - MANY} more: --out DIR and --json give all"]


def _grid(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(Text(column), justify="left" if not number else "right", overflow="fold")
    return table


def _head(row: Mapping[str, Any]) -> list[Text]:
    name = f"{row['name']} {row['direction']}" + f" x{row['count']}" * (row["count"] > 1) + " (noisy)" * bool(row.get("noisy"))
    plain = row["baseline"]
    ms = f"{plain['ms']:.3g}" if plain else ""
    error = f" ({plain['error']:.0e})" if plain.get("error") is not None else ""
    return [Text(name), Text(ms + error)]


def _cell(row: Mapping[str, Any], cell: Mapping[str, Any]) -> Text:
    if "ratio" not in cell:
        return Text("-", style="dim")
    error = f" ({cell['error']:.0e})" if cell.get("error") is not None else ""
    if "same_as" in cell:
        return Text(f"= {cell['same_as'] or 'torch'}{error}", style="dim")
    style = "green" if is_gain(row, cell) else "red" if cell["ratio"] < 0.97 else ""
    spread = f" ±{cell['spread'] / 2:.0%}" if cell["spread"] is not None else " (rough)"
    return Text(f"{cell['ratio']:.2f}{spread}{error}", style=style)


def notes(cell: Mapping[str, Any]) -> list[str]:
    """What is to be known of a cell that has a time."""
    same = [f"the same as {cell['same_as'] or 'torch'}: measured as one"] if "same_as" in cell else []
    return same + ([cell["told"]] if cell.get("told") else [])


def _matrix(result: Mapping[str, Any], names: list[str]) -> Table:
    table = _grid(TIMES, "torch, ms (error)", *names)
    for row in result["rows"]:
        cells = {cell["point"]: cell for cell in row["cells"]}
        values = [_cell(row, cells[name]) for name in names] if cells else [Text(row.get("reason", ""), style="red")]
        table.add_row(*_head(row), *values)
    return table


def _best(result: Mapping[str, Any]) -> Table:
    table = _grid(TIMES, "torch, ms (error)", "best", "second", "third")
    for row in result["rows"]:
        others = [cell for cell in measured(row) if "same_as" not in cell]
        ranked = sorted(others, key=lambda cell: -cell["ratio"])[:3]
        cells = [Text.assemble(f"{cell['point']} ", _cell(row, cell)) for cell in ranked] or [
            Text(row.get("reason", "nothing ran"))
        ]
        table.add_row(*_head(row), *cells)
    return table


def _totals(result: Mapping[str, Any]) -> Table:
    table = _grid("on the whole", "speed", "worst error", "peak memory", "workspace", "rows", "left to torch")
    for total in sorted(result["totals"], key=lambda total: -total["ratio"]):
        numbers = (
            f"{total['ratio']:.2f}" + " (rough)" * bool(total["rows_stopped"]),
            f"{total['error']:.0e}" if total["error"] is not None else "",
            size(total["peak_bytes"]) if total["peak_bytes"] else "",
            size(total["workspace"]) if total["workspace"] else "",
            str(total["rows"]),
            str(total["rows_of_torch"]),
        )
        table.add_row(Text(total["point"]), *numbers)
    best = result["best"]
    if len({*best["points"]}) > 1:
        left = sum(not point for point in best["points"])
        numbers = (f"{best['ratio']:.2f}", "", "", "", str(len(best["points"]) - left), str(left))
        table.add_row(Text("the best of each row", style="bold"), *numbers)
    return table

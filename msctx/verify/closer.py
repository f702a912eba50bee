"""One more pair of runs, up to the operator that differs: the lines that called it, and by how much its tensors differ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msctx.observers.collector import Row
from msctx.verify import match, values
from msctx.verify.match import Difference
from msctx.verify.result import Result
from msctx.verify.rows import Ran
from msctx.verify.runs import Side, Subject, running


def call_of(row: Ran, rows: Sequence[Ran]) -> tuple[str, str, int]:
    """An operator, its module, and how many of these ran before in the step."""
    earlier = sum((one.operator, one.module) == (row.operator, row.module) and one.order < row.order for one in rows)
    return row.operator, row.module, earlier


def _forward_of(row: Ran, rows: Sequence[Ran]) -> Ran | None:
    """The operator whose node of the graph ran it."""
    return next((one for one in rows if one.order == row.maker), None)


def look(
    subject: Subject, sides: Sequence[Side], result: Result, difference: Difference, rows: Sequence[Sequence[Ran]]
) -> None:
    """Complete the finding."""
    finding = result.finding
    assert finding is not None
    there = [number for number, row in enumerate(difference.rows) if row is not None]
    details, first_forward = [], None
    for number in there:
        row = difference.rows[number]
        assert row is not None
        forward = _forward_of(row, rows[number])
        first_forward = first_forward or forward
        calls = [call_of(one, rows[number]) for one in (row, forward) if one is not None]
        details.append({"kind": "detail", "step": finding.step, "calls": calls})
    with running(subject, [sides[number] for number in there], details) as runs:
        found: list[tuple[Path, dict[str, Any]]] = []
        for run in runs:
            run.begin()
            found.append((run.folder / "tensors", run.go()))
        lines = found[0][1].get("lines") or [""]
        finding.source = lines[0]
        if first_forward is not None:
            module = first_forward.module
            finding.forward = f"{first_forward.operator}{f' in {module}' if module else ''}, {lines[-1]}"
        taken = [(folder, row) for folder, one in found if (row := one.get("row")) is not None]
        has_own = any(row["attributes"].get("generator") for _, row in taken)
        if finding.kind == match.RANDOM and not has_own and len({one.get("generator") for _, one in found}) == 1:
            finding.kind = match.OPERATOR  # torch's generator was the same in both runs
        if len(taken) == 2 and difference.kind != match.PARTED:
            _compare(result, difference, taken)


def _compare(result: Result, difference: Difference, taken: Sequence[tuple[Path, Row]]) -> None:
    finding = result.finding
    assert finding is not None
    mine, theirs = (row["attributes"] for _, row in taken)
    finding.arguments = {name: (mine[name], theirs.get(name)) for name in mine if mine[name] != theirs.get(name)}
    for side, numbers, names in (
        ("inputs", difference.inputs, finding.inputs),
        ("outputs", difference.outputs, finding.outputs),
    ):
        for number, name in zip(numbers, names, strict=False):
            files = [folder / row[side][number]["file"] for folder, row in taken if number < len(row[side])]
            if len(files) == 2 and all(file.is_file() for file in files):
                finding.values.append({"tensor": f"{side[:-1]} {name}", **values.difference(*files)})
    if finding.values and not any(one["differing"] or one["differing"] is None for one in finding.values):
        result.notes.append("in one more pair of runs these tensors agreed: they differ only sometimes")

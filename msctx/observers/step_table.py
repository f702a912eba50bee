"""The table of the steps of a profile: for spreadsheets, and to be read."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msctx.observers.trace import PHASES, Operator, Step

TOP = 10
"""Operators of each step that the text shows."""
STEPS = ("step", "total_ms", *(f"{phase}_ms" for phase in PHASES))
OPERATORS = ("step", "operator", "shapes", "algorithm", "calls", "total_ms", "self_ms")


def _index(step: Step) -> str:
    return "all" if step.index is None else str(step.index)


def _time(milliseconds: float | None) -> str:
    return "" if milliseconds is None else f"{milliseconds:.3f}"


def steps(found: Iterable[Step]) -> Iterator[Sequence[str]]:
    for step in found:
        yield _index(step), _time((step.end - step.begin) / 1e3), *(_time(step.milliseconds(phase)) for phase in PHASES)


def operators(found: Iterable[Step], most: int | None = None) -> Iterator[Sequence[str]]:
    """Those that take longest first, without what is inside them."""

    def own(item: tuple[tuple[str, str], Operator]) -> float:
        return -item[1].own

    for step in found:
        for (name, shapes), of in sorted(step.operators.items(), key=own)[:most]:
            yield _index(step), name, shapes, of.algorithm, str(of.calls), _time(of.total), _time(of.own)


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


def write_text(path: Path, found: Sequence[Step], notes: Iterable[str]) -> None:
    lines = ["Milliseconds of the host.", *notes, "", *_aligned([STEPS, *steps(found)])]
    for step in found:
        if step.operators:
            lines += ["", f"Step {_index(step)}: the operators that take longest", ""]
            lines += _aligned([row[1:] for row in (OPERATORS, *operators([step], TOP))])
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()

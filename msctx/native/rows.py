"""Rows of what ran, as a sequence that prints as a table."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from msctx import locks

if TYPE_CHECKING:
    from rich.table import Table

R = TypeVar("R", bound=Any)
WIDTH = 200
NUMBERS = ("error", "workspace", "calls", "kept", "casts")
"""Columns that are aligned on the right."""


class ScopeCounter:
    """Counts while some scope of a context is open: from when the first opens until the last closes."""

    def __init__(self) -> None:
        self._lock = locks.plain()
        self._open = 0

    def open(self) -> None:
        with self._lock:
            if not self._open:
                self._begin()
            self._open += 1

    def close(self) -> list[str]:
        """Returns what is to be reported."""
        with self._lock:
            self._open -= 1
            return [] if self._open else self._end()

    def _begin(self) -> None:
        raise NotImplementedError

    def _end(self) -> list[str]:
        raise NotImplementedError


class Row:
    """A dataclass."""

    __slots__ = ()

    def as_dict(self: Any) -> dict[str, Any]:
        return asdict(self)


class Rows(Sequence[R]):
    """Prints as a table."""

    EMPTY: ClassVar[str]
    """What it prints without rows."""

    def __init__(self, rows: Iterable[R] = (), dropped: int = 0) -> None:
        """*dropped*: how many there were beside these."""
        self._rows, self.dropped = tuple(rows), dropped

    def __getitem__(self, index: Any) -> Any:
        return type(self)(self._rows[index], self.dropped) if isinstance(index, slice) else self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self._rows == other._rows

    def __hash__(self) -> int:
        return hash(self._rows)

    def as_dicts(self) -> list[dict[str, Any]]:
        return [row.as_dict() for row in self._rows]

    def _table(self) -> tuple[Sequence[str], Iterable[Iterable[Any]]]:
        """The names of the columns, and their cells row by row."""
        raise NotImplementedError

    def __str__(self) -> str:
        dropped = f"\n{self.dropped} rows used longer ago were dropped" if self.dropped else ""
        return plain(grid(*self._table())) + dropped if self._rows else self.EMPTY

    __repr__ = __str__


def grid(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> Table:
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column in NUMBERS else "left", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def size(number: int) -> str:
    """A number of bytes for people."""
    for unit, one in (("GB", 2**30), ("MB", 2**20), ("KB", 2**10)):
        if number >= one:
            return f"{number / one:.1f} {unit}"
    return str(number)


def plain(table: Table) -> str:
    """A table as text without colours."""
    from rich.console import Console

    stream = io.StringIO()
    Console(file=stream, width=WIDTH, color_system=None).print(table)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines() if line.strip())

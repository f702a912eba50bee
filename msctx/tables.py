"""Tables of what is planned and of what ran: as text, as HTML in notebooks, as CSV and as data frames."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

if TYPE_CHECKING:
    import pandas
    from rich.table import Table as Grid

R = TypeVar("R", bound=Any)
WIDTH, PLACE = 200, 100
"""Of a table as text, and how much of that is for places; longer ones make it wider."""
NUMBERS = ("error", "workspace", "calls", "kept", "casts")
"""Columns that are aligned on the right."""
PLACES = ("where",)
"""Columns whose cells stay on one line, to be copied."""


class Row:
    """A dataclass."""

    __slots__ = ()

    def as_dict(self: Any) -> dict[str, Any]:
        return asdict(self)


class Table:
    """Prints as a table."""

    EMPTY: ClassVar[str]
    """What it prints without rows."""
    NESTED: ClassVar[Mapping[str, Any]] = {}
    """The columns that hold columns of their own, with the dataclasses that these are of."""
    dropped = 0
    """How many rows there were beside these."""

    def _table(self) -> tuple[Sequence[str], Iterable[Iterable[Any]]]:
        """The names of the columns, and their cells row by row."""
        raise NotImplementedError

    def as_dicts(self) -> list[dict[str, Any]]:
        """A dictionary for each row, of plain data."""
        raise NotImplementedError

    def __str__(self) -> str:
        columns, cells = self._table()
        made = grid(columns, cells)
        return "\n".join([plain(made) if made.row_count else self.EMPTY, *self._notes()])

    __repr__ = __str__

    def _notes(self) -> list[str]:
        """Lines below the table."""
        return [f"{self.dropped} rows used longer ago were dropped"] if self.dropped else []

    def _repr_html_(self) -> str:
        columns, cells = self._table()
        head = "".join(f"<th>{escape(column)}</th>" for column in columns)
        body = "".join(f"<tr>{''.join(f'<td>{_html(cell)}</td>' for cell in row)}</tr>" for row in cells)
        notes = "".join(f"<div>{escape(note)}</div>" for note in self._notes())
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}" if body else escape(self.EMPTY)

    def to_csv(self, path: str | PathLike[str] | None = None) -> str | None:
        """The rows as CSV, in the columns of :meth:`to_pandas`: written to *path*, else returned. Lists are joined by spaces."""
        rows = [{name: _joined(value) for name, value in row.items()} for row in self._flat()]
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self._columns(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        if path is None:
            return text.getvalue()
        Path(path).write_text(text.getvalue(), encoding="utf-8")
        return None

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a data frame; what a row nests has dotted names (``problem.input``). Requires pandas."""
        import pandas

        return pandas.DataFrame([*self._flat()], columns=self._columns())

    def _columns(self) -> list[str]:
        """The names of the columns in data frames and CSV."""
        return [*next(self._flat(), {})]

    def _flat(self) -> Iterator[dict[str, Any]]:
        for row in self.as_dicts():
            nested = {name: {f"{name}.{inner}": row[name][inner] for inner in row[name]} for name in self.NESTED}
            yield {key: value for name in row for key, value in nested.get(name, {name: row[name]}).items()}


class Rows(Table, Sequence[R]):
    """A table that is a sequence of its rows."""

    ROW: ClassVar[Any]
    """The dataclass of its rows."""

    def __init__(self, rows: Iterable[R] = (), dropped: int = 0) -> None:
        self._rows, self.dropped = tuple(rows), dropped

    def __getitem__(self, index: Any) -> Any:
        return type(self)(self._rows[index], self.dropped) if isinstance(index, slice) else self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self._rows == other._rows

    def __hash__(self) -> int:
        return hash(self._rows)

    def _columns(self) -> list[str]:
        inner = {name: [f"{name}.{one.name}" for one in fields(kind)] for name, kind in self.NESTED.items()}
        return [column for one in fields(self.ROW) for column in inner.get(one.name, [one.name])]

    def as_dicts(self) -> list[dict[str, Any]]:
        return [row.as_dict() for row in self._rows]


def _html(cell: Any) -> str:
    return escape(str(cell)).replace("\n", "<br>")


def _joined(value: Any) -> Any:
    if isinstance(value, Mapping):
        return " ".join(f"{name}={inner}" for name, inner in value.items())
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else value


def grid(columns: Iterable[str], rows: Iterable[Iterable[Any]], right: Iterable[str] = NUMBERS) -> Grid:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for column in columns:
        side: Any = "right" if column in right else "left"
        made.add_column(Text(column), justify=side, overflow="fold", no_wrap=column in PLACES)
    for row in rows:
        made.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return made


def in_words(size: int) -> str:
    """In four digits, as kernels/include/msctx/process.h does."""
    units = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
    power = min((max(size, 1).bit_length() - 1) // 10, len(units) - 1)
    return f"{size / 1024**power:.4g} {units[power]}"


def plain(table: Grid) -> str:
    """A table as text without colours."""
    from rich.cells import cell_len
    from rich.console import Console

    stream = io.StringIO()
    places = sum(max((cell_len(str(cell)) for cell in column.cells), default=0) for column in table.columns if column.no_wrap)
    Console(file=stream, width=WIDTH + max(0, places - PLACE), color_system=None).print(table)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines() if line.strip())

"""Rows of what ran, as a sequence that prints as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.table import Table

R = TypeVar("R", bound=Any)


class Rows(Sequence[R]):
    """Rows that have ``as_dict``. Prints as a table."""

    EMPTY = ""
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

    def _table(self) -> Table:
        raise NotImplementedError

    def __str__(self) -> str:
        from msctx.native import table

        dropped = f"\n{self.dropped} rows used longer ago were dropped" if self.dropped else ""
        return table.plain(self._table()) + dropped if self._rows else self.EMPTY

    __repr__ = __str__

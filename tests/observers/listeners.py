"""A reader of the collector that keeps all rows."""

from collections.abc import Mapping

from msctx.observers.collector import Reader, Row


class Listens(Reader):
    def __init__(self, **asked: int) -> None:
        self.settings, self._asked = asked, asked
        self.rows: list[Row] = []

    @property
    def asked(self) -> Mapping[str, int]:
        return self._asked

    def take(self, rows: list[Row]) -> None:
        self.rows += rows

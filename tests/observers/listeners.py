"""A reader of the collector that keeps all rows."""

from collections.abc import Mapping

from msctx.observers.operator_events import Reader, Row
from msctx.observers.slots_and_files import Slot


class Listens(Reader):
    def __init__(self, **requested: int) -> None:
        self.settings, self._requested = requested, requested
        self.rows: list[Row] = []

    @property
    def requested(self) -> Mapping[str, int]:
        return self._requested

    def take(self, rows: list[Row]) -> None:
        self.rows += rows


TESTED = Slot(Listens)

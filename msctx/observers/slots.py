"""What a switch turns on: made of its settings, begun and ended, and begun again after an inner context."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Slot:
    """The one of a kind that is on; it has ``settings``, ``begin()`` and ``end()``."""

    def __init__(self, kind: Callable[[Any], Any]) -> None:
        self._kind = kind
        self.on: Any = None

    def read(self) -> Any:
        return None if self.on is None else self.on.settings

    def save(self) -> Any:
        return self.on

    def load(self, found: Any) -> None:
        if self.on is not found:
            before, self.on = self.on, None
            if before is not None:
                before.end()
            if found is not None:
                found.begin()
            self.on = found

    def write(self, settings: Any) -> None:
        self.load(None if settings is None else self._kind(settings))

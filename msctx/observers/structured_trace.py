"""PyTorch's structured trace: a logger that gets each graph, each piece of generated code and the end of each compilation."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

LOGGER = logging.getLogger("torch.__trace")


def name_of(record: logging.LogRecord) -> str:
    """The name of an artifact, else the first key of the metadata."""
    found: dict[str, Any] = getattr(record, "metadata", {})
    return str((found.get("artifact") or {}).get("name") or next(iter(found), ""))


class Slot:
    """The handler that a switch has put there; it is made from the settings and keeps them."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._make = make
        self.handler: Any = None

    def read(self) -> Any:
        return None if self.handler is None else self.handler.settings

    def write(self, settings: Any) -> None:
        self.load(None if settings is None else self._make(settings))

    def save(self) -> Any:
        return self.handler

    def load(self, handler: Any) -> None:
        if self.handler is not None:
            LOGGER.removeHandler(self.handler)
        self.handler = handler
        if handler is not None:
            LOGGER.addHandler(handler)

"""PyTorch's structured trace: a logger that gets each graph, each piece of generated code and the end of each compilation."""

from __future__ import annotations

import logging
from typing import Any

LOGGER = logging.getLogger("torch.__trace")


def name_of(record: logging.LogRecord) -> str:
    """The name of an artifact, else the first key of the metadata."""
    found: dict[str, Any] = getattr(record, "metadata", {})
    return str((found.get("artifact") or {}).get("name") or next(iter(found), ""))


class Handler(logging.Handler):
    """Gets what a switch keeps of it."""

    def __init__(self, settings: Any) -> None:
        super().__init__(logging.DEBUG)
        self.settings = settings

    def begin(self) -> None:
        LOGGER.addHandler(self)

    def end(self) -> None:
        LOGGER.removeHandler(self)

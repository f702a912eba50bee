"""Tells the library in which threads torch.compile compiles, while it collects: what runs there is no operator of the program.

PyTorch's callbacks (torch._dynamo.callback) reach only the thread that compiles first, and torch._dynamo.reset() drops them. Its
structured trace has the phases of each compilation, in the thread that compiles.
"""

from __future__ import annotations

import json
import logging
import threading

from msctx.native import core
from msctx.observers.structured_trace import LOGGER

PHASES = ("entire_frame_compile", "entire_backward_compile")


class _Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.is_wanted = False
        self._before: dict[int, list[int]] = {}
        """Thread that compiles → whether the library looked away when each compilation, one inside the other, began."""

    def turn(self, on: bool) -> None:
        """It stays until the threads that compile have ended that."""
        assert self.lock is not None
        with self.lock:
            self.is_wanted = on
            (LOGGER.addHandler if on or self._before else LOGGER.removeHandler)(self)

    def emit(self, record: logging.LogRecord) -> None:
        text = getattr(record, "payload", None)
        if not isinstance(text, str) or '"entire_' not in text or "chromium_event" not in vars(record)["metadata"]:
            return
        event, here = json.loads(text), threading.get_ident()
        if event["name"] in PHASES and event["ph"] == "B":
            self._before.setdefault(here, []).append(core.load().c.msctx_look_away(1))
        elif event["name"] in PHASES and here in self._before:
            core.load().c.msctx_look_away(self._before[here].pop())
            if not self._before[here]:
                del self._before[here]
                self.turn(self.is_wanted)


LISTENER = _Listener()

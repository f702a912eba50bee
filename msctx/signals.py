"""Puts the handlers of signals off while what they may interrupt must not be left half done."""

from __future__ import annotations

import _signal  # signal's own functions look each number up in an enumeration: for all of them that takes longer than the rest
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class _Waiting(list[Any]):
    """Stands in for the handlers of signals: keeps what they are to be called with, until it is done."""

    def __init__(self) -> None:
        super().__init__()
        self.handlers: dict[int, Any] = {}
        self.is_done = False

    def __call__(self, *call: Any) -> None:
        self.append(call)
        if self.is_done:  # a signal came while the handlers were put back
            self.deliver()

    def deliver(self) -> None:
        """Call the handlers; one that raises does not keep the others from being called."""
        while self:
            number, frame = self.pop(0)
            try:
                self.handlers[number](number, frame)
            finally:
                self.deliver()

    def install(self) -> None:
        for number in _SIGNALS:
            handler = _signal.getsignal(number)
            if isinstance(handler, _Waiting):
                handler = handler.handlers[number]
            if callable(handler):
                self.handlers[number] = handler
                _signal.signal(number, self)

    def remove(self) -> None:
        global waiting_now
        self.is_done = True
        for number, handler in self.handlers.items():
            _signal.signal(number, handler)
        waiting_now = None


_SIGNALS = tuple(int(number) for number in signal.valid_signals())
waiting_now: _Waiting | None = None


@contextmanager
def uninterrupted() -> Iterator[Callable[[], None]]:
    """Put the handlers of signals off until the block is done: any of them may raise, as that of Ctrl-C and those of time limits do,
    and that must not fall between a write and its entry in the ledger.

    Yields a function that lets those that are waiting through at once: a block that can still undo its work calls it last. Inside
    another such block it does nothing: the outer one decides.
    """
    global waiting_now
    if threading.current_thread() is not threading.main_thread() or waiting_now is not None:
        yield lambda: None
        return
    waiting = _Waiting()
    try:
        try:
            waiting_now = waiting
            waiting.install()
            yield waiting.deliver
        finally:
            waiting.remove()
    finally:
        if waiting_now is waiting:  # something came between
            waiting.remove()
        waiting.deliver()

"""Defers Ctrl-C while settings are written and restored."""

from __future__ import annotations

import _signal  # signal makes enumerations of all that it takes and returns: 13 times as slow
import threading
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


class uninterrupted:  # noqa: N801
    """Defer Ctrl-C until the with-block is done. Inside another such block the outer one decides.

    It takes the place of the handler, and calls that one at the end. Python runs signal handlers in the main thread alone;
    elsewhere this does nothing.
    """

    number = _signal.SIGINT
    _handler: Any = None
    _call: tuple[int, FrameType | None] | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._call = number, frame

    def __enter__(self) -> None:
        if threading.get_ident() == threading.main_thread().ident:
            handler: Any = _signal.getsignal(self.number)
            if callable(handler) and not isinstance(handler, uninterrupted):
                self._handler = handler
                _signal.signal(self.number, self)

    def __exit__(self, *_: object) -> None:
        if self._handler is not None:
            found: Any = _signal.getsignal(self.number)
            if found is self:  # the block itself may have set another
                _signal.signal(self.number, self._handler)
            if self._call is not None:
                self._handler(*self._call)


class Turn(ExitStack):
    """What a call has begun; it ends with the with-block, the last first, and Ctrl-C waits meanwhile."""

    def begin(self, start: Callable[[], T], end: Callable[[T], object]) -> T:
        """*end* is called with what *start* returns."""
        with uninterrupted():
            self.callback(end, started := start())
            return started

    def __exit__(self, *error: Any) -> bool | None:
        has_begun = False
        try:
            with uninterrupted():
                has_begun = True
                return super().__exit__(*error)
        except KeyboardInterrupt:
            if not has_begun:  # Ctrl-C came before it was deferred
                self.__exit__(*error)
            raise

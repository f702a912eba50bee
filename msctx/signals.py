"""Defers Ctrl-C while settings are written and restored."""

from __future__ import annotations

import _signal  # signal makes enumerations of all that it takes and returns: 13 times as slow
import threading
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any


class _Deferred:
    """Takes the place of the handler of SIGINT, and calls that handler when the block is done."""

    def __init__(self, handler: Any) -> None:
        self._handler = handler
        self._call: tuple[int, FrameType | None] | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._call = number, frame

    def __enter__(self) -> None:
        _signal.signal(_signal.SIGINT, self)

    def __exit__(self, *_: object) -> None:
        found: Any = _signal.getsignal(_signal.SIGINT)
        if found is self:  # the block itself may have set another
            _signal.signal(_signal.SIGINT, self._handler)
        if self._call is not None:
            self._handler(*self._call)


def uninterrupted() -> AbstractContextManager[None]:
    """Defer Ctrl-C until the with-block is done. Inside another such block the outer one decides.

    Python runs signal handlers in the main thread alone; elsewhere this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        return nullcontext()
    handler = _signal.getsignal(_signal.SIGINT)
    return _Deferred(handler) if callable(handler) and not isinstance(handler, _Deferred) else nullcontext()

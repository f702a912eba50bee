"""Counting while a context is open, by whichever of its scopes."""

from __future__ import annotations

from msctx import locks
from msctx.signals import uninterrupted


class ScopeCounter:
    """Counts while some scope of a context is open: from when the first opens until the last closes.

    The handler of a signal must not find :attr:`_lock` taken by its own thread: it is held inside ``uninterrupted()`` alone.
    """

    def __init__(self) -> None:
        self._lock = locks.plain()
        self._open = 0

    def open(self) -> None:
        with uninterrupted(), self._lock:
            if not self._open:
                self._begin()
            self._open += 1

    def close(self) -> list[str]:
        """Returns what is to be reported."""
        with uninterrupted(), self._lock:
            self._open -= 1
            return [] if self._open else self._end()

    def _begin(self) -> None:
        raise NotImplementedError

    def _end(self) -> list[str]:
        raise NotImplementedError

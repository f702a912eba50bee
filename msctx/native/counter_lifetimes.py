"""What is counted while contexts are open, and what is installed in PyTorch while somebody wants it.

A kind of counter has ``begin()``, also for what has come since, and ``end()``, which returns what is to be reported. A context has
none of a kind before there was something to count.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from msctx.deferred_interrupts import uninterrupted


class Held:
    """Entered by the first holder, left by the last."""

    def __init__(self, make: Callable[[], AbstractContextManager[object]]) -> None:
        self._make = make
        self._held: AbstractContextManager[object] | None = None
        self.holders = 0
        self._lock = threading.Lock()

    def want(self, count: int) -> None:
        """So many more holders, or fewer."""
        with self._lock:
            self.holders += count
            if self.holders and self._held is None:
                (held := self._make()).__enter__()
                self._held = held
            elif not self.holders and self._held is not None:
                held, self._held = self._held, None  # first: it may be interrupted, and is made again the next time
                held.__exit__(None, None, None)


T = TypeVar("T")

MET: Counter[str] = Counter()
"""How often options have met what they act on: ``run`` of sessions, ``call`` of compiled code, and kinds of models."""
SOURCES: dict[Any, Collection[Any]] = {}
"""Kind of counter → what holds something while there may be something to count."""
_open: dict[Any, int] = {}
"""The contexts that are open, in the order of opening → how many scopes they have."""
_lock = threading.RLock()


def begin(context: Any) -> None:
    """Count, from now on or once there is something to count, until :func:`end` was called as often."""
    with uninterrupted(), _lock:
        _open[context] = _open.get(context, 0) + 1
        try:
            for kind, source in SOURCES.items():
                if source:
                    _count(kind, context)
        except BaseException:
            end(context)
            raise


def end(context: Any) -> list[str]:
    """Returns what is to be reported."""
    with uninterrupted(), _lock:
        _open[context] -= 1
        if _open[context]:
            return []
        del _open[context]
        return [text for counter in context.counters.values() for text in counter.end()]


def note(kind: Any) -> None:
    """There is more to count."""
    with uninterrupted(), _lock:
        for context in _open:
            _count(kind, context)


def counted(context: Any, kind: Any, read: Callable[[Any], T], nothing: T) -> T:
    """What a counter of a context has counted."""
    with uninterrupted(), _lock:
        return read(context.counters[kind]) if kind in context.counters else nothing


def _count(kind: Any, context: Any) -> None:
    if kind not in context.counters:
        context.counters[kind] = kind(context)
    context.counters[kind].begin()

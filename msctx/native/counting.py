"""What is installed in PyTorch while some policy is in force, and what is counted while contexts are open.

A kind of counter has ``begin()``, also for what has come since, and ``end()``, which returns what is to be reported. A context has
none of a kind before there was something to count.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from msctx.signals import uninterrupted


class AtWork:
    """Its lock is held while what is installed changes; what the collector of garbage releases meanwhile waits until :meth:`tidy`.

    A finalizer may run in any line of any thread, also of one that holds a lock of ours: it must not wait for one. The lock is
    taken by ``with`` itself: a signal's handler that raises would leave one held that a function of ours had just taken.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._jobs: deque[Callable[[], None]] = deque()

    def later(self, job: Callable[[], None]) -> None:
        """For finalizers: at once, unless somebody is at work, who does it afterwards."""
        self._jobs.append(job)
        self.tidy()

    def tidy(self) -> None:
        """Do what waits, unless somebody is at work."""
        if not self._jobs:
            return
        with uninterrupted():
            while self._jobs and self.lock.acquire(blocking=False):
                try:
                    while self._jobs:
                        self._jobs.popleft()()
                finally:
                    self.lock.release()


at_work = AtWork()


class Held:
    """Installed by the first holder, taken away by the last: *install* returns what takes it away."""

    def __init__(self, install: Callable[[], Callable[[], None]]) -> None:
        self._install = install
        self._remove: Callable[[], None] | None = None
        self._holders = 0
        self._lock = threading.Lock()

    def want(self, count: int) -> None:
        """So many more holders, or fewer."""
        with self._lock:
            self._holders += count
            if self._holders and self._remove is None:
                self._remove = self._install()
            elif not self._holders and self._remove is not None:
                remove, self._remove = self._remove, None  # first: it may be interrupted, and is installed again the next time
                remove()


T = TypeVar("T")

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

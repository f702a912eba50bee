"""What is installed in PyTorch, for all threads, as long as some policy is in force somewhere."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

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

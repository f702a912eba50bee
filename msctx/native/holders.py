"""What is installed in PyTorch, for all threads, as long as some policy is in force somewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Held:
    """Installed by the first holder, taken away by the last: *install* returns what takes it away."""

    def __init__(self, install: Callable[[], Callable[[], None]]) -> None:
        self._install = install
        self._remove: Callable[[], None] | None = None
        self._holders = 0
        self._lock = threading.RLock()  # a collection of garbage may release

    def want(self, count: int) -> None:
        """So many more holders."""
        with self._lock:
            self._holders += count
            if self._holders and self._remove is None:
                self._remove = self._install()

    def release(self, count: int) -> None:
        with self._lock:
            self._holders -= count
            if not self._holders and self._remove is not None:
                self._remove()
                self._remove = None

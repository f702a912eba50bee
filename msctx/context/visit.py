"""What a thread has of a scope that another thread holds, while it runs a function that is bound to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msctx.context import ledger
from msctx.context.holds import HELD, LOCK


class Visit:
    """What a thread sets for itself, for a while, of a scope that another thread holds. To be begun and ended uninterrupted."""

    def __init__(self, assignments: Mapping[str, Any]) -> None:
        self.hold = ledger.apply(
            {n: v for n, v in assignments.items() if ledger.SWITCHES[n].scope == "thread"}, "bound function"
        )
        self._found: dict[str, Callable[[], None]] = {}
        try:
            with LOCK:
                for key, holds in list(HELD.items()):
                    if isinstance(key, str) and (switch := ledger.SWITCHES[key]).scope == "inherited":
                        there = holds[-1].records[key].wrote
                        if switch.read() != there:
                            self._found[key] = partial(switch.put_back, switch.take())
                            switch.set(there)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        try:
            ledger.raise_failed(*ledger.run_all(self._found))
        finally:
            ledger.undo(self.hold)

"""The memory of a run: the peak of each phase, and where the memory was when there was none left.

A phase ends with each line that the entry logs. Counted is the pool of host memory, where the options of a run ask for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from msctx.effects.memory import in_words
from msctx.native import memory


class MemoryOfRun:
    """Counts while the entry runs, if the pool is in force."""

    def __init__(self) -> None:
        from msctx.native.memory_by_module import ByModule  # here: what comes before a run needs no torch

        self.phases: list[dict[str, int]] = []
        self._by_module = ByModule()
        self._allocations = 0
        self._when_refused: list[tuple[str, int]] = []
        self.is_on = memory.read_pool() is not None

    @contextmanager
    def counting(self) -> Iterator[None]:
        if not self.is_on:
            yield
            return
        memory.reset_peak()
        self._allocations = memory.statistics()["allocations"]
        with self._by_module.counting() if memory.read_caps() else nullcontext():  # it costs some microseconds a module
            yield

    def end_phase(self) -> None:
        if self.is_on:
            found = memory.statistics()
            made, self._allocations = found["allocations"] - self._allocations, found["allocations"]
            self.phases.append({name: found[name] for name in ("peak_bytes", "current_bytes")} | {"allocations": made})
            memory.reset_peak()

    def told_of(self, error: BaseException) -> str:
        """What is to be added to an error that says that there is no memory left."""
        import torch

        if not self.is_on or not isinstance(error, torch.OutOfMemoryError):
            return ""
        self._when_refused = self._by_module.largest(at_refusal=True)
        lines = [f"  {in_words(size):>10}  {path}" for path, size in self._when_refused[:5]]
        return "\n".join(["\nWhat was in use then, by the module whose forward pass had allocated it:", *lines])

    def record(self) -> dict[str, Any]:
        """What memory.json holds; nothing: the pool is not in force."""
        if not self.is_on:
            return {}
        self.end_phase()
        found: dict[str, Any] = {"peak_bytes": max(phase["peak_bytes"] for phase in self.phases), "phases": self.phases}
        found["caps"] = memory.statistics()["caps"]
        if self._when_refused:
            found["when_refused"] = [{"module": path, "bytes": size} for path, size in self._when_refused]
        return found

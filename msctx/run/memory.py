"""The memory of a run: the peak of each phase, and where the memory was when there was none left.

A phase ends with each line that the entry logs. Counted is the pool of host memory, where the options of a run ask for it, and the
current accelerator, as soon as the program uses one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from msctx.effects.memory import in_words
from msctx.native import memory
from msctx.native.memory import accelerator


class MemoryOfRun:
    """Counts while the entry runs."""

    def __init__(self) -> None:
        from msctx.native.memory_by_module import ByModule  # here: what comes before a run needs no torch

        self.phases: list[dict[str, Any]] = []
        self._by_module = ByModule()
        self._allocations = 0
        self._when_refused: list[tuple[str, int]] = []
        self.is_on = memory.read_pool() is not None

    @contextmanager
    def counting(self) -> Iterator[None]:
        self._allocations = memory.statistics()["allocations"]
        self._reset_peaks()
        with self._by_module.counting() if memory.read_caps() else nullcontext():  # it costs some microseconds a module
            yield

    def end_phase(self) -> None:
        phase: dict[str, Any] = {}
        if self.is_on:
            found = memory.statistics()
            made, self._allocations = found["allocations"] - self._allocations, found["allocations"]
            phase |= {name: found[name] for name in ("peak_bytes", "current_bytes")} | {"allocations": made}
        if device := accelerator():
            from torch.accelerator import max_memory_allocated, memory_allocated

            phase["accelerator"] = {
                "device": device,
                "peak_bytes": max_memory_allocated(),
                "current_bytes": memory_allocated(),
            }
        if phase:
            self.phases.append(phase)
        self._reset_peaks()

    def _reset_peaks(self) -> None:
        if self.is_on:
            memory.reset_peak()
        if accelerator():
            from torch.accelerator import reset_peak_memory_stats

            reset_peak_memory_stats()

    def lines_about(self, error: BaseException) -> str:
        """What is added to an error of a lack of memory."""
        import torch

        if not memory.read_caps() or not isinstance(error, torch.OutOfMemoryError):
            return ""
        self._when_refused = self._by_module.largest(at_refusal=True)
        if not self._when_refused:
            return ""
        lines = [f"  {in_words(size):>10}  {path}" for path, size in self._when_refused[:5]]
        return "\n".join(["\nWhat was in use then, by the module whose forward pass had allocated it:", *lines])

    def record(self) -> dict[str, Any]:
        """What memory.json holds; nothing: nothing was counted. What was allocated before the entry began only the caps have seen."""
        self.end_phase()
        found: dict[str, Any] = {"phases": self.phases} if self.phases else {}
        if self.is_on:
            found["caps"] = memory.statistics()["caps"]
            found["peak_bytes"] = max(row["peak_bytes"] for row in (*self.phases, *found["caps"]))
        if of_accelerator := [phase["accelerator"] for phase in self.phases if "accelerator" in phase]:
            found["accelerator_peak_bytes"] = max(row["peak_bytes"] for row in of_accelerator)
        if self._when_refused:
            found["when_refused"] = [{"module": path, "bytes": size} for path, size in self._when_refused]
        return found

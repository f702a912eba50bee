"""The memory of a run: the peak of each phase.

A phase ends with each line that the entry logs. Counted is host memory, where the options of a run request it, and the current
accelerator, as soon as the program uses one.
"""

from __future__ import annotations

from typing import Any

from msctx.native import memory
from msctx.native.memory import accelerator


class MemoryOfRun:
    """Counts while the entry runs."""

    def __init__(self) -> None:
        self.phases: list[dict[str, Any]] = []
        self._allocations = 0
        self.is_on = memory.read_pool() is not None

    def begin(self) -> None:
        self._allocations = memory.statistics()["allocations"]
        self._reset_peaks()

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

    def record(self) -> dict[str, Any]:
        """What memory.json holds; nothing: nothing was counted. What was allocated before the entry began only the caps have seen."""
        self.end_phase()
        found: dict[str, Any] = {"phases": self.phases} if self.phases else {}
        if self.is_on:
            found["caps"] = memory.statistics()["caps"]
            found["peak_bytes"] = max(row["peak_bytes"] for row in (*self.phases, *found["caps"]))
        if of_accelerator := [phase["accelerator"] for phase in self.phases if "accelerator" in phase]:
            found["accelerator_peak_bytes"] = max(row["peak_bytes"] for row in of_accelerator)
        return found

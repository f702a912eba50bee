"""How much memory a stretch of a program takes on a device, and how much the caps in force leave."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from msctx.native import memory as pool


class Meter:
    """Counts from its making to :meth:`stop`.

    On an accelerator it reads torch's own statistics, and resets none of them: they are the user's. Where there was more in use
    once before, that is what it returns.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._number = pool.open_meter() if device.type == "cpu" else None
        self._begin = 0 if device.type == "cpu" else int(torch.get_device_module(device).memory_allocated(device))
        self._most = 0

    def sample(self) -> None:
        """Look now, before somebody resets the statistics."""
        if self._device.type != "cpu":
            peak = torch.get_device_module(self._device).max_memory_allocated(self._device)
            self._most = max(self._most, int(peak) - self._begin)

    def stop(self) -> int:
        """The most bytes that were in use at once, beyond what was in use at the beginning."""
        self.sample()
        if self._number is not None:
            self._most, self._number = pool.close_meter(self._number), None
        return self._most

    def __del__(self) -> None:
        if getattr(self, "_number", None) is not None:
            self.stop()


class Room(NamedTuple):
    """The tightest cap on a device, what counts towards it now, and how often memory has been refused."""

    cap: int
    used: int
    refusals: int


def room_under_caps(device: torch.device) -> Room | None:
    """``None``: there is no cap."""
    if device.type == "cpu":
        rows = pool.statistics()["caps"]
        found = [Room(row["limit_bytes"], row["current_bytes"], row["out_of_memory"]) for row in rows]
        return min(found, key=lambda room: room.cap - room.used, default=None)
    module: Any = torch.get_device_module(device)
    fraction = getattr(module, "get_per_process_memory_fraction", lambda device: 1.0)(device)
    if fraction >= 1:
        return None
    cap = int(fraction * module.get_device_properties(device).total_memory)
    return Room(cap, module.memory_allocated(device), module.memory_stats(device).get("num_ooms", 0))

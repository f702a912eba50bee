"""How much memory a stretch of a program takes on a device, and how much the caps in force leave."""

from __future__ import annotations

from typing import Any

import torch

from msctx.native import memory as pool


class Meter:
    """Counts from its making to :meth:`stop`. On an accelerator it reads torch's statistics, and resets none of them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._number = pool.open_meter() if device.type == "cpu" else None
        self._begin = 0 if device.type == "cpu" else int(torch.get_device_module(device).memory_allocated(device))

    def stop(self) -> int:
        """The most bytes that were in use at once, beyond what was in use at the beginning."""
        if self._device.type != "cpu":
            return max(0, int(torch.get_device_module(self._device).max_memory_allocated(self._device)) - self._begin)
        number, self._number = self._number, None
        return pool.close_meter(number) if number is not None else 0

    def __del__(self) -> None:
        if getattr(self, "_number", None) is not None:
            self.stop()


def room_under_caps(device: torch.device) -> tuple[int, int] | None:
    """The tightest cap on a device, and what counts towards it now; ``None``: there is no cap."""
    if device.type == "cpu":
        rows = [(row["limit_bytes"], row["current_bytes"]) for row in pool.statistics()["caps"]]
        return min(rows, key=lambda row: row[0] - row[1], default=None)
    module: Any = torch.get_device_module(device)
    fraction = getattr(module, "get_per_process_memory_fraction", lambda device: 1.0)(device)
    if fraction >= 1:
        return None
    return int(fraction * module.get_device_properties(device).total_memory), module.memory_allocated(device)

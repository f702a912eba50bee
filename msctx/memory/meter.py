"""How much memory a stretch of a program takes on a device, and how much the caps in force leave."""

from __future__ import annotations

from typing import Any

import torch

from msctx.native import memory as pool


class Meter:
    """Counts from its making to :meth:`stop`. On an accelerator it resets torch's peak statistics of the device, as anybody may."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._number = pool.open_meter() if device.type == "cpu" else None
        if self._number is None:
            module = torch.get_device_module(device)
            module.reset_peak_memory_stats(device)
            self._begin = module.memory_allocated(device)

    def stop(self) -> int:
        """The most bytes that were in use at once, beyond what was in use at the beginning."""
        if self._number is not None:
            return pool.close_meter(self._number)
        return int(torch.get_device_module(self.device).max_memory_allocated(self.device) - self._begin)


def left_under_caps(device: torch.device) -> tuple[int, int] | None:
    """How many bytes the tightest cap on a device leaves now, and that cap; ``None``: there is none."""
    if device.type == "cpu":
        caps = [(cap["limit_bytes"] - cap["current_bytes"], cap["limit_bytes"]) for cap in pool.statistics()["caps"]]
        return min(caps, default=None)
    module: Any = torch.get_device_module(device)
    fraction = getattr(module, "get_per_process_memory_fraction", lambda device: 1.0)(device)
    if fraction >= 1:
        return None
    cap = int(fraction * module.get_device_properties(device).total_memory)
    return cap - module.memory_allocated(device), cap

"""What callbacks report of a training, as numbers by name."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from msctx.native import memory

if TYPE_CHECKING:
    from msctx.context import Context
    from msctx.integrations.scaling import LossScaling


def peaks() -> dict[str, float]:
    """The memory peaks so far: of counted host memory and of the accelerator, each where it is used."""
    found: dict[str, float] = {}
    if memory.read_pool() is not None:
        found["peak_memory_bytes"] = float(memory.statistics()["peak_bytes"])
    if memory.accelerator():
        from torch.accelerator import max_memory_allocated

        found["peak_accelerator_bytes"] = float(max_memory_allocated())
    return found


def summary(ctx: Context, scaling: LossScaling | None) -> dict[str, float]:
    """Peaks, how many calls each convolution algorithm computed, and the steps of a scaled loss."""
    found = Counter[str]()
    for row in ctx.choices():
        found[f"choices/{row.direction}/{row.ran}"] += row.calls
    if scaling is not None and scaling.scaler.is_enabled():
        found.update(scaled_steps=scaling.scaler.steps, overflow_steps=scaling.scaler.overflow_steps)
    return peaks() | {name: float(number) for name, number in found.items()}

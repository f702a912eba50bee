"""Float16 and losses: whether a plan computes in it, and the warning where nobody scales the loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msctx.options.precision_rules import precision_of


def lowers_to_float16(assignments: Mapping[str, Any], device: str) -> bool:
    """Whether what a plan assigns computes in float16 on a device of PyTorch's name."""
    kind = device if device in ("cpu", "cuda") else "ascend"
    text = assignments.get(f"native.precision.{kind}")
    return bool(text and precision_of(text).needs_scaler)


def unscaled() -> str:
    """The warning for a backward pass in float16; ``""`` where somebody has a scaler."""
    import gc

    import torch

    if any(issubclass(type(found), torch.amp.GradScaler) and found.is_enabled() for found in gc.get_objects()):
        return ""
    return (
        "a backward pass in float16 without a GradScaler: gradients below 6e-8 vanish. Take one from ctx.grad_scaler(), and use "
        "scaler.scale(loss).backward(), scaler.step(optimizer), scaler.update()"
    )

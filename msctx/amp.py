"""The GradScaler of a context: PyTorch's own, which also counts the steps that were skipped because gradients overflowed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from msctx.options.precision_policy import precision_of
from msctx.plan import Plan
from msctx.themes.cann_session import LOW_PRECISION
from msctx.themes.precision import POLICY


class GradScaler(torch.amp.GradScaler):
    """``torch.amp.GradScaler``.

    Attributes:
        steps: how many optimizer steps were requested.
        overflow_steps: how many of them were skipped, since a gradient was Inf or NaN.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.steps = self.overflow_steps = 0
        for made in _watching:
            made.append(self)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        result = super().step(optimizer, *args, **kwargs)
        self.count(self._per_optimizer_states[id(optimizer)]["found_inf_per_device"] if self.is_enabled() else {})
        return result

    def count(self, found: Mapping[Any, torch.Tensor]) -> bool:
        """Count a step, by what was found on each device; returns whether it overflowed."""
        overflowed = any(bool(inf) for inf in found.values())
        self.steps += 1
        self.overflow_steps += overflowed
        return overflowed


def lowers_to_float16(assignments: Mapping[str, Any], device: str) -> bool:
    """Whether what a plan assigns computes in float16 on a device of PyTorch's name."""
    kind = device if device in POLICY else "ascend"
    first = assignments.get(LOW_PRECISION)
    texts = [assignments.get(POLICY[kind]), first and first["policies"].get(kind)]
    return any(precision_of(text).needs_scaler for text in texts if text)


def scaler_for(plan: Plan, device: str, options: Mapping[str, Any]) -> GradScaler:
    """What :meth:`msctx.context.Context.grad_scaler` gives: gradients in float16 vanish below 6e-8, unless the loss is scaled."""
    return GradScaler(device, enabled=lowers_to_float16(plan.assignments, device), **options)


_watching: list[list[GradScaler]] = []


@contextmanager
def watched() -> Iterator[Callable[[], dict[str, int]]]:
    """Gives what all enabled scalers that are made inside the block have counted; nothing where there are none."""
    made: list[GradScaler] = []
    _watching.append(made)

    def counted() -> dict[str, int]:
        found = [scaler for scaler in made if scaler.is_enabled()]
        if not found:
            return {}
        return {"scaled_steps": sum(s.steps for s in found), "overflow_steps": sum(s.overflow_steps for s in found)}

    try:
        yield counted
    finally:
        _watching[:] = [found for found in _watching if found is not made]

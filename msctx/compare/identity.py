"""Which choices come to the same thing in a row: the same switches moved, and the same kernels run. They are measured as one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msctx.context import Context
from msctx.native.choices import Choice
from msctx.options.conv_policy import plain
from msctx.switches import SWITCHES

TORCH: Identity = (frozenset(), frozenset())
"""What torch's own path comes to."""
Identity = tuple[frozenset[tuple[str, str]], frozenset[Any]]
"""The switches moved, and the kernels."""


def moved(context: Context, *, is_compiled: bool) -> frozenset[tuple[str, str]]:
    """The switches that a choice moves beside what is in force; to be found out before it has run, as some stay moved.

    Args:
        is_compiled: whether code may be compiled inside, which the switches of inductor are for.
    """
    return frozenset(
        (switch, repr(_shown(switch, value)))
        for switch, value in context.plan.assignments.items()
        if (is_compiled or not switch.startswith("torch.inductor.")) and not _is_so(switch, value)
    )


def _shown(switch: str, value: Any) -> Any:
    """What of a value is more than a choice of kernels: what came of that, the kernels show."""
    if not switch.startswith("native.convolution."):
        return value
    policy = plain(value) or {}
    return [policy.get(field) for field in ("deterministic", "thread_invariant", "batch_invariant", "frozen_weights")]


def kernels(ran: Iterable[Choice]) -> frozenset[Any]:
    """The kernels that ran in the place of torch's own."""
    return frozenset(
        (row.direction, row.problem, row.module, row.ran, row.provider, row.math, row.workspace)
        for row in ran
        if row.provider != "torch"
    )


def _is_so(name: str, value: Any) -> bool:
    switch = SWITCHES[name]
    return switch.available() and bool(_shown(name, switch.read()) == _shown(name, value))

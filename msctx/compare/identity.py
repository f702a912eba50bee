"""Which choices come to the same thing in a row: the same switches moved, and the same kernels run. They are measured as one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msctx.context import Context
from msctx.native.choices import Choice
from msctx.switches import SWITCHES

DECIDING = (
    *("conv_fprop_algo", "conv_dgrad_algo", "conv_wgrad_algo", "conv_algo_rules", "enable_small_channel", "tuning_file"),
    *("conv_allow_tf32", "allow_fp32_emulation", "conv_max_error", "conv_workspace_limit", "fallback"),
)
"""Fields of the core's policy that do nothing but decide which kernels run: what came of them, the kernels show."""
TORCH: Identity = (frozenset(), frozenset())
"""What torch's own path comes to."""
Identity = tuple[frozenset[tuple[str, str]], frozenset[Any]]
"""The switches moved, and the kernels."""


def moved(context: Context, *, is_compiled: bool) -> frozenset[tuple[str, str]]:
    """The switches that a choice moves beside what is in force; to be found out before it has run, as some stay moved.

    Args:
        is_compiled: whether code may be compiled inside, which the switches of inductor are for.
    """
    quiet = {f"native.{place}{field}" for field in DECIDING for place in ("", "cuda.")}
    return frozenset(
        (switch, repr(value))
        for switch, value in context.plan.assignments.items()
        if switch not in quiet and (is_compiled or not switch.startswith("torch.inductor.")) and not _is_so(switch, value)
    )


def kernels(ran: Iterable[Choice]) -> frozenset[Any]:
    """The kernels that ran in the place of torch's own."""
    return frozenset(
        (row.direction, row.problem, row.module, row.ran, row.provider, row.math, row.workspace)
        for row in ran
        if row.provider != "torch"
    )


def _is_so(name: str, value: Any) -> bool:
    switch = SWITCHES[name]
    return switch.available() and bool(switch.read() == value)

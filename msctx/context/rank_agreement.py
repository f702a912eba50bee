"""The first block of each rank in a process group compares the options that decide numerics with those of the other ranks.

This is a collective of the program's process group, so all ranks enter their first block together. Later blocks compare nothing.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence

from msctx._version import __version__
from msctx.errors import StrictError
from msctx.native import ranks_and_process_group
from msctx.native.ranks_and_process_group import in_words
from msctx.notices import warn
from msctx.options.algorithm_policy import plain
from msctx.plan import Plan

Values = dict[str, tuple[str, str]]
"""Option → its value, and where it was set."""
NUMERICS = (
    *("torch.autocast", "torch.cpu_capability", "torch.cuda.matmul", "torch.cudnn", "torch.default_dtype"),
    *("torch.deterministic", "torch.float32_matmul_precision", "torch.flush_denormal", "torch.fp32_precision", "torch.mkl"),
    *("torch.num_threads", "torch.sdp", "native.convolution", "native.precision", "session.low_precision", "graph.compilation"),
    *("torch.inductor.batch_invariant", "torch.inductor.deterministic", "torch.inductor.emulate"),
    *("torch.inductor.fallback_random", "torch.inductor.bucket_", "torch.inductor.reorder_for_compute_comm"),
    *("models.gradients", "models.gathered_ahead", "observers.replicas"),
    *("env.CUBLAS", "env.HCCL", "env.NCCL_ALGO", "env.TE_PARALLEL_COMPILER"),
)
"""Prefixes of the switches that decide results, or which collectives run. Seeds and memory may differ between ranks."""
_compared: set[int] = set()
"""The process groups in which this process has entered a block."""


def check(plan: Plan) -> None:
    """Compare *plan* with the other ranks' plans if this is the first block in the process group.

    Raises:
        StrictError: they differ, and the plan is strict or has ``fallback="error"``. Nothing was changed.
    """
    group = ranks_and_process_group.run()
    if not group or group in _compared:
        return
    _compared.add(group)
    found: list[Values] = ranks_and_process_group.gathered(_values(plan))
    if lines := [*_differences(found)]:
        text = "\n".join(["ranks differ in options that decide results:", *lines])
        if plan.strict or plan.without_fallback:
            raise StrictError(f"{text}\nNothing was changed: give all ranks the same options.")
        warn(text)


def _values(plan: Plan) -> Values:
    found = {
        row.spelling: (f"{plain(row.value)}, {row.status}", row.origin)
        for row in plan.rows
        if any(switch.startswith(NUMERICS) for switch in row.assignments)
    }
    torch = sys.modules["torch"].__version__
    return found | {"version of msctx": (__version__, "installed"), "version of torch": (torch, "installed")}


def _differences(found: Sequence[Values]) -> Iterator[str]:
    """A line for each option whose values differ: each value, its ranks, and where the first of them has set it."""
    for name in sorted({name for values in found for name in values}):
        holders: defaultdict[str, list[int]] = defaultdict(list)
        for rank, values in enumerate(found):
            holders[values.get(name, NOT_SET)[0]].append(rank)
        if len(holders) > 1:
            cells = (
                f"{in_words(ranks)}: {value} ({found[ranks[0]].get(name, NOT_SET)[1]})" for value, ranks in holders.items()
            )
            yield f"  {name}: " + "; ".join(cells)


NOT_SET = ("not in force", "not set, overridden, or refused")

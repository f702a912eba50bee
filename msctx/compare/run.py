"""A comparison from its description to its result."""

from __future__ import annotations

import os

import torch

from msctx.compare import comparison as comparing
from msctx.compare.comparison import Watch
from msctx.compare.config import Comparison
from msctx.compare.result import Budget, Result
from msctx.compare.summary import nothing, recommend, result_of
from msctx.inspection import environment


def run(comparison: Comparison, watch: Watch | None = None) -> Result:
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    if comparison.subject == "experiment":
        from msctx.compare import experiment

        return result_of(comparison, experiment.compare(comparison, watch), environment(), load)
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices):
        found = result_of(comparison, comparing.compare(comparison, watch), environment(), load)
        if comparison.keys.budget is not None:
            _add_budget(comparison, comparison.keys.budget, found, watch)
    return found


def _add_budget(comparison: Comparison, budget: float, found: Result, watch: Watch | None) -> None:
    """What keeps the budget is what is recommended, and nothing else is."""
    from msctx.compare import error_budget

    recommend(found, nothing(found))
    if found.partial:
        found.budget = Budget(budget=budget, reason=f"it was not looked for: {found.partial}")
        return
    try:
        error_budget.find(comparison, budget, found, watch)
    except KeyboardInterrupt:
        found.partial, found.interrupted = "interrupted", True
        found.budget = Budget(budget=budget, reason="interrupted")

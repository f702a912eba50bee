"""A comparison from its description to its result."""

from __future__ import annotations

from typing import Any

import torch

from msctx.compare.comparison import Watch, compare
from msctx.compare.config import Comparison
from msctx.compare.result import recommend, result_of
from msctx.inspection import environment


def run(comparison: Comparison, watch: Watch | None = None) -> dict[str, Any]:
    """Measure; returns what result.json holds."""
    if comparison.subject == "experiment":
        from msctx.compare import experiment

        return result_of(comparison, experiment.compare(comparison, watch), environment())
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices):
        outcome = compare(comparison, watch)
        found = result_of(comparison, outcome, environment())
        if comparison.budget is not None:
            _add_budget(comparison, found, watch)
    return found


def _add_budget(comparison: Comparison, found: dict[str, Any], watch: Watch | None) -> None:
    """What keeps the budget is what is recommended, and nothing else is."""
    from msctx.compare import error_budget

    recommend(found, {"ratio": 1.0, "points": [""] * len(found["rows"]), "options": {}})
    if found["partial"]:
        found["budget"] = {"budget": comparison.budget, "reason": f"it was not looked for: {found['partial']}"}
        return
    try:
        budget = error_budget.find(comparison, found, watch)
        found["files"] = budget.pop("files", {})
        if best := budget.pop("best", None):
            recommend(found, best)
    except KeyboardInterrupt:
        found |= {"partial": "interrupted", "interrupted": True}
        budget = {"budget": comparison.budget, "reason": "interrupted"}
    found["budget"] = budget

"""A comparison from its description to its result."""

from __future__ import annotations

from typing import Any

from msctx.compare.comparison import Watch, compare
from msctx.compare.config import Comparison
from msctx.compare.result import result_of
from msctx.inspection import environment


def run(comparison: Comparison, watch: Watch | None = None) -> dict[str, Any]:
    """Measure; returns what result.json holds."""
    if comparison.subject == "experiment":
        from msctx.compare import experiment

        return result_of(comparison, experiment.compare(comparison, watch), environment())
    outcome = compare(comparison, watch)
    found = result_of(comparison, outcome, environment())
    if comparison.budget is not None and not outcome.partial:
        from msctx.compare import error_budget

        found["recommended"] = ""  # what does not keep the budget is none
        try:
            found["budget"] = error_budget.find(comparison, found, watch)
            found["recommended"] = found["budget"]["recommended"]
        except KeyboardInterrupt:
            found["partial"] = "interrupted"
    return found

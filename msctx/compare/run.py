"""A comparison from its description to its result."""

from __future__ import annotations

import os

import torch

from msctx.compare import comparison as comparing
from msctx.compare.comparison import Watch
from msctx.compare.config import Comparison
from msctx.compare.result import Result
from msctx.compare.summary import result_of
from msctx.inspection import environment


def run(comparison: Comparison, watch: Watch | None = None) -> Result:
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    if comparison.subject == "experiment":
        from msctx.compare import experiment

        return result_of(comparison, experiment.compare(comparison, watch), environment(), load)
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices):
        return result_of(comparison, comparing.compare(comparison, watch), environment(), load)

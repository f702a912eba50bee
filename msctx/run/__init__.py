"""Experiments from YAML: the file, the entry it names, the run and its record."""

from msctx.run.record import weights_sha256
from msctx.run.runner import Run, active, log, run_experiment

__all__ = ["Run", "active", "log", "run_experiment", "weights_sha256"]

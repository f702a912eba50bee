"""Experiments from YAML: the file, the entry it names, the run and its record."""

from msctx.run.record import weights_sha256
from msctx.run.runner import Run, log

__all__ = ["Run", "log", "weights_sha256"]

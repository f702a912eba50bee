"""The points of a sweep as jobs of Slurm, by submitit; its local executor runs them as processes of this machine, at once."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from msctx.errors import Diagnostic, OptionError, nearest, text_of
from msctx.run import sweep

ENGINES = ("local", "slurm")
POLL = 0.5
"""Seconds between two looks at the jobs."""


class Jobs:
    """An engine of :func:`msctx.run.sweep.sweep`.

    Args:
        cluster: one of ENGINES.
        parameters: as submitit has them, such as ``timeout_min`` and ``slurm_partition``.

    Raises:
        OptionError: submitit is missing, there is no Slurm here, or it does not know a parameter.
    """

    def __init__(self, cluster: str, parameters: Mapping[str, Any]) -> None:
        try:
            self._submitit: Any = import_module("submitit")
        except ImportError:
            hint = "pip install submitit, or msctx[slurm]"
            raise OptionError([Diagnostic("--engine", f"{cluster} needs submitit", "command line", suggestion=hint)]) from None
        self._cluster, self._parameters = cluster, dict(parameters)
        if problems := [*self._problems()]:
            raise OptionError(problems)
        self._executor(Path("."))

    def _problems(self) -> Iterator[Diagnostic]:
        """submitit passes over what is for another engine."""
        shared: dict[str, type] = self._submitit.AutoExecutor._typed_parameters()
        executors = self._submitit.core.plugins.get_executors()
        own = {engine: sorted(f"{engine}_{name}" for name in executors[engine]._valid_parameters()) for engine in ENGINES}
        allowed = [*shared, *own[self._cluster]]
        for name, value in self._parameters.items():
            kind = shared.get(name)
            if kind is None and not any(name in names for names in own.values()):
                near = nearest(name, allowed)
                yield Diagnostic(
                    "--job", f"{name!r} is no parameter of submitit", "command line", ", ".join(allowed), suggestion=near
                )
            elif kind is not None and not isinstance(value, (int, float) if kind is float else kind):
                yield Diagnostic("--job", f"{name}={value} is no {kind.__name__}", "command line")

    def _executor(self, folder: Path) -> Any:
        try:
            executor = self._submitit.AutoExecutor(folder=folder, cluster=self._cluster)
            executor.update_parameters(**self._parameters)
        except (RuntimeError, NameError, TypeError, ValueError) as error:
            text = str(error).strip().partition("\n")[0]
            raise OptionError([Diagnostic("--engine", f"{self._cluster}: {text}", "command line")]) from None
        return executor

    def __call__(self, file: str, points: Sequence[tuple[int, Sequence[str], Path]], scratch: Path) -> sweep.Results:
        executor = self._executor(scratch)
        jobs = {n: executor.submit(_run, sweep.command(file, words, folder), str(Path.cwd())) for n, words, folder in points}
        folders = {number: folder for number, _, folder in points}
        try:
            while jobs:
                for number in [number for number, job in jobs.items() if job.done()]:
                    yield number, self._result(jobs.pop(number), folders[number])
                time.sleep(POLL if jobs else 0)
        finally:
            for job in jobs.values():
                job.cancel()

    def _result(self, job: Any, folder: Path) -> dict[str, Any]:
        try:
            code, out, err = job.result()
        except Exception as error:  # the job was killed, timed out, or never began: it has no result
            code, out, err = 1, "", f"job {job.job_id}: {text_of(error).strip()}"
        return sweep.result_of(folder, code, out, err)


def _run(command: Sequence[str], folder: str) -> tuple[int, str, str]:
    """In the job."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    return done.returncode, done.stdout, done.stderr

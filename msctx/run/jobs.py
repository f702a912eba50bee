"""Jobs of Slurm, by submitit, whose local executor runs them as processes of this machine: the points of a sweep."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from msctx.errors import Diagnostic, OptionError, nearest, text_of
from msctx.options.yamlfile import scalar
from msctx.run import sweep
from msctx.signals import uninterrupted

ENGINES = ("local", "slurm")
POLL = 0.5
"""Seconds between two looks at the jobs."""
ONE = ("nodes", "slurm_nodes", "tasks_per_node", "slurm_ntasks_per_node")
"""Parameters that would run the same thing several times."""


def engine(name: str, words: Sequence[str]) -> Jobs:
    """Of ``--engine`` and the words of ``--job``.

    Raises:
        OptionError: with every problem of theirs.
    """
    problems = []
    if name not in ENGINES:
        problems.append(Diagnostic("--engine", f"{name!r} is not an engine", "command line", ", ".join(ENGINES)))
    pairs = [word.partition("=")[::2] for word in words]
    problems += [
        Diagnostic("--job", f"{word!r} is not KEY=VALUE", "command line")
        for word, (key, value) in zip(words, pairs, strict=True)
        if not key or not value
    ]
    if problems:
        raise OptionError(problems)
    return Jobs(name, {key: scalar(value) for key, value in pairs})


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
            elif name in ONE and value != 1:
                yield Diagnostic("--job", f"{name}={value}: a job is one process on one node", "command line", "1")

    def _executor(self, folder: Path) -> Any:
        try:
            executor = self._submitit.AutoExecutor(folder=folder, cluster=self._cluster)
            executor.update_parameters(**self._parameters)
        except (RuntimeError, NameError, TypeError, ValueError) as error:
            text = str(error).strip().partition("\n")[0]
            raise OptionError([Diagnostic("--engine", f"{self._cluster}: {text}", "command line")]) from None
        return executor

    def __call__(self, file: str, points: Sequence[tuple[int, Sequence[str], Path]], scratch: Path) -> sweep.Results:
        executor, here = self._executor(scratch), str(Path.cwd())
        scratch.mkdir(parents=True, exist_ok=True)
        jobs: dict[int, Any] = {}
        folders = {number: folder for number, _, folder in points}
        try:
            for number, words, folder in points:
                with uninterrupted():  # a job that is not known here could not be cancelled
                    jobs[number] = self._submit(executor, _run, sweep.command(file, words, folder), here)
            while jobs:
                for number in [number for number, job in jobs.items() if job.done()]:
                    yield number, self._result(jobs.pop(number), folders[number])
                time.sleep(POLL if jobs else 0)
        finally:
            for job in jobs.values():
                job.cancel()

    def _submit(self, executor: Any, *what: Any) -> Any:
        with _quiet(Path(executor.folder)):
            try:
                return executor.submit(*what)
            except self._submitit.core.utils.FailedJobError as error:  # Slurm refuses it
                text = text_of(error).strip().replace("\n", "; ")
                raise OptionError([Diagnostic("--engine", f"{self._cluster}: {text}", "command line")]) from None

    def _result(self, job: Any, folder: Path) -> dict[str, Any]:
        try:
            code, out, err = job.result()
        except Exception as error:  # the job was killed, timed out, or never began: it has no result
            code, out, err = 1, "", f"job {job.job_id}: {text_of(error).strip()}"
        return sweep.result_of(folder, code, out, err)


@contextmanager
def _quiet(scratch: Path) -> Iterator[None]:
    """What the local engine's own processes write goes into a file: a traceback, each time a job is cancelled."""
    kept = os.dup(2)
    try:
        with (scratch / "engine.log").open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _run(command: Sequence[str], folder: str) -> tuple[int, str, str]:
    """In the job."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    return done.returncode, done.stdout, done.stderr

"""The points of a sweep as jobs, by submitit: of Slurm, or at once as processes of this machine."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from msctx.errors import Diagnostic, OptionError, text_of
from msctx.options.documents import scalar
from msctx.run import sweep
from msctx.signals import uninterrupted

POLL = 0.5
"""Seconds between two looks at the jobs."""


def engine(name: str, words: Sequence[str]) -> sweep.Engine:
    """An engine of :func:`msctx.run.sweep.sweep`, of ``--engine`` and the words of ``--job``, submitit's parameters.

    Raises:
        OptionError: submitit is missing, or refuses the engine or a parameter.
    """
    if wrong := [Diagnostic("--job", f"{word!r} is not KEY=VALUE", "command line") for word in words if "=" not in word]:
        raise OptionError(wrong)
    parameters = {key: scalar(value) for key, _, value in (word.partition("=") for word in words)}
    try:
        submitit: Any = import_module("submitit")
        submitit.AutoExecutor(folder=".", cluster=name).update_parameters(**parameters)
    except ImportError:
        hint = "pip install submitit, or msctx[slurm]"
        raise OptionError([Diagnostic("--engine", f"{name} needs submitit", "command line", suggestion=hint)]) from None
    except (RuntimeError, NameError, TypeError, ValueError, AssertionError) as error:
        raise _refused(name, error) from None

    def run(file: str, points: Sequence[sweep.Point], scratch: Path) -> sweep.Results:
        executor = submitit.AutoExecutor(folder=scratch, cluster=name)
        executor.update_parameters(**parameters)
        jobs: dict[int, tuple[Path, Any]] = {}
        try:
            for number, point, folder in points:
                with uninterrupted():  # a job that is not known here could not be cancelled
                    jobs[number] = folder, executor.submit(_run, sweep.command(file, point, folder), str(Path.cwd()))
            while jobs:
                for number in [number for number, (_, job) in jobs.items() if job.done()]:
                    yield number, _result(*jobs.pop(number))
                time.sleep(POLL if jobs else 0)
        except submitit.core.utils.FailedJobError as error:  # Slurm refuses it
            raise _refused(name, error) from None
        finally:
            for _, job in jobs.values():
                job.cancel()

    return run


def _refused(name: str, error: Exception) -> OptionError:
    return OptionError([Diagnostic("--engine", f"{name}: {text_of(error)}", "command line")])


def _result(folder: Path, job: Any) -> dict[str, Any]:
    try:
        code, err = job.result()
    except Exception as error:  # the job was killed, timed out, or never began: it has no result
        code, err = 1, f"job {job.job_id}: {text_of(error).strip()}"
    return sweep.result_of(folder, code, err)


def _run(command: Sequence[str], folder: str) -> tuple[int, str]:
    """In the job."""
    done = subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stderr

"""Other processes: any command under options (msctx exec), several ranks as one run (msctx run FILE --nproc N), a run of a grid."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE
from tempfile import TemporaryDirectory
from typing import Any

from msctx.errors import Diagnostic, EntryFailed, FileError, OptionError, StrictError, nearest
from msctx.native import ranks_and_process_group
from msctx.notices import warn
from msctx.options import Layer, find, layer_sources
from msctx.options.layer_sources import presets
from msctx.run.experiment_and_entry import Experiment
from msctx.run.record import Record, result_in, result_of

GRACE = 10.0
"""Seconds that a run has after Ctrl-C or SIGTERM to end by itself."""


def execute(command: Sequence[str], layer: Layer, *, strict: bool = False) -> int:
    """Run *command* with *layer* in MSCTX_PLAN; returns its exit code, as shells count them where a signal ended it.

    Raises:
        FileError: the command cannot be started.
        StrictError: it has ended, and under *strict* no process of it has entered the options, or one did nothing in any.
    """
    with TemporaryDirectory(prefix="msctx-exec-") as folder:
        (seen := Path(folder) / "seen").touch()
        environment = os.environ | {layer_sources.PLAN: layer_sources.pack(layer, seen=str(seen))}
        try:
            process = subprocess.Popen(command, env=environment)
        except OSError as error:
            hint = f"{command[0]}=VALUE" if find(command[0]) else nearest(command[0], presets())
            raise FileError([Diagnostic("", f"cannot be started: {error.strerror}", command[0], suggestion=hint)]) from None
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, lambda number, frame: process.send_signal(number))
        for key in (signal.SIGINT, signal.SIGQUIT):  # a terminal sends those to the command, too
            signal.signal(key, signal.SIG_IGN)
        code = process.wait()
        lines = seen.read_text(encoding="utf-8").splitlines()
        idle = [set(json.loads(line)) for line in lines if line.startswith("[") and not code]
        found = sorted(set.intersection(*idle)) if idle else []
        if lines:
            layer_sources.note_process(os.environ, str(os.getpid()))  # for a `msctx exec` around this one
        else:
            found = [
                f"the options did nothing: no process of `{' '.join(command)}` on this machine entered them before it ended."
                " That needs an import of torch, and an environment in which msctx is installed. A Python that runs with -S does"
                " not read them"
            ]
        if strict and found:
            raise StrictError(f"strict=True, and {'; '.join(found)}")
        for text in found:
            warn(text)
    return code if code >= 0 else 128 - code


def launch(experiment: Experiment, words: Sequence[str], out: str | None, *, nproc: int) -> Path:
    """Run `msctx run *words` as *nproc* ranks of this node; returns the run directory.

    Args:
        out: the run directory. Default: a new one under ``record.dir``.

    Raises:
        EntryFailed: ranks failed; the exit code is that of one of them.
        FileError: *out* has the record of another run.
        KeyboardInterrupt: Ctrl-C; each rank has ended its record.
    """
    import torch
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    top = Path(out).absolute() if out else Record.fresh(experiment.record_dir, experiment.name)
    if any(top.glob("rank_*")):
        raise FileError([Diagnostic("", "is not empty: a run never overwrites another", str(top))])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, torch.get_num_threads() // nproc)))
    with TemporaryDirectory(prefix="msctx-run-", ignore_cleanup_errors=True) as logs:
        agent = LaunchConfig(1, 1, nproc, DefaultLogsSpecs(log_dir=logs), RUN_ID, max_restarts=0)
        agent.rdzv_backend, agent.rdzv_endpoint = "c10d", "localhost:0"
        try:
            elastic_launch(agent, sys.executable)("-m", "msctx", "run", *words, "--out", str(top))
        except ChildFailedError as ended:
            results = {rank: result_in(top / f"rank_{rank}") or {} for rank in ended.failures}
            failed = [rank for rank in results if results[rank].get("status") != "completed"]  # torchrun ends those that linger
            codes = {rank: ended.failures[rank].exitcode for rank in failed or results}
            lines = [f"  rank {rank}: {results[rank].get('reason') or f'exit code {code}'}" for rank, code in codes.items()]
            error = EntryFailed("\n".join(["ranks failed" + f"; the records are in {top}" * top.exists(), *lines]))
            error.exit_code = max((code for code in codes.values() if code > 0), default=EntryFailed.exit_code)
            raise error from None
        except SignalException as signalled:
            raise (KeyboardInterrupt if signalled.sigval == signal.SIGINT else SystemExit(128 + signalled.sigval)) from None
    return top


RUN_ID = "msctx"
"""That `msctx run --nproc` gives to torchrun's agent."""


def is_one_of_several() -> bool:
    """Whether a launcher started this process beside others. Torchrun may also start one alone."""
    size = os.environ.get("WORLD_SIZE") or "1"
    if not size.isdecimal():
        raise OptionError([Diagnostic("WORLD_SIZE", f"{size!r} is not a number of processes", "environment")])
    return "TORCHELASTIC_RUN_ID" in os.environ or int(size) > 1


def rank() -> int:
    """The number of this process in its run; 0 where it is alone."""
    return ranks_and_process_group.rank_or_0() if is_one_of_several() else 0


def record(out: str | None, parent: str, name: str) -> Record:
    """The folder of this process: that of the run; where there are several processes, ``rank_0`` and so on in it.

    Without *out*, each has its own folder: they do not know of each other yet. After a restart a rank overwrites its record.
    """
    if not is_one_of_several():
        return Record.create(out, parent, name)
    mine = f"rank_{rank()}"
    if out is None:
        return Record.create(None, parent, f"{name}-{mine}")
    folder = Path(out) / mine
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
        shutil.rmtree(folder, ignore_errors=True)
    return Record.create(str(folder), parent, name)


def run_point(file: str, words: Sequence[str], folder: Path) -> dict[str, Any]:
    """Run an experiment in a process that ends with this one; what result.json holds, or ``{"status": "failed", "error": …}``.

    The process and all that it starts are one group. Ctrl-C is passed on to it, other exceptions as SIGTERM.
    """
    how: dict[str, Any] = {"encoding": "utf-8", "errors": "replace", "start_new_session": True}
    command = [sys.executable, "-m", "msctx", "run", file, *words, "--out", str(folder)]
    with subprocess.Popen(command, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE, **how) as process:
        try:
            _, err = process.communicate()
        except BaseException as raised:
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, signal.SIGINT if isinstance(raised, KeyboardInterrupt) else signal.SIGTERM)
                process.communicate(timeout=GRACE)
            raise
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return result_of(folder, process.returncode, err)

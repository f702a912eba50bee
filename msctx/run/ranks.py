"""Several processes are one run: `msctx run FILE --nproc N`, or `torchrun -m msctx run FILE`: one report, one folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from msctx.errors import Diagnostic, FileError
from msctx.native import distributed
from msctx.native.distributed import number
from msctx.options import carried
from msctx.run.record import Record


def _restart() -> int | None:
    """How often all ranks were started before, as `msctx run --nproc` has counted it; ``None``: it has not started this process."""
    return carried.read(os.environ).get("restart")


def is_one_of_several() -> bool:
    """Whether a launcher has started this process beside others; `msctx run --nproc` also may start one alone."""
    return number("WORLD_SIZE") > 1 or _restart() is not None


def rank() -> int:
    """The number of this process in its run, as launchers pass it; 0 where it is alone."""
    return number("RANK") if is_one_of_several() else 0


def record(out: str | None, parent: str, name: str) -> Record:
    """The folder of this process, which is made: that of the run; where there are several processes, ``rank_0`` and so on in it.

    Where the launcher is not torchrun, the processes do not know of each other before the entry has made its process group: without
    *out* each then has a folder of its own.
    """
    if not is_one_of_several():
        return Record.create(out, parent, name)
    mine, restart = f"rank_{rank()}", _restart()
    if out is None and not distributed.has_agent():
        return Record.create(None, parent, f"{name}-{mine}")
    if out is None:
        out = _agreed_folder(distributed.agents_store("run"), parent, name)
    if restart is None:  # torchrun's agent counts how often the ranks of its node have failed; with one node it is the same
        restart = number("TORCHELASTIC_RESTART_COUNT")
    if restart:
        mine = f"restart_{restart}/{mine}"
    return Record.create(str(Path(out) / mine), parent, name)


def _agreed_folder(store: Any, parent: str, name: str) -> str:
    """Rank 0 makes the folder of the run, once: the store outlives restarts."""
    if rank() == 0 and not store.check(["run_dir"]):
        folder = str(Record.create(None, parent, name).folder)
        store.set("run_dir", folder)
        return folder
    try:
        return str(store.get("run_dir").decode())
    except RuntimeError:
        raise FileError(
            [Diagnostic("", f"rank 0 has made no run directory for {distributed.WAIT.seconds} s", where=parent)]
        ) from None

"""Several processes are one run: `msctx run FILE --nproc N`, or `torchrun -m msctx run FILE`: one report, one folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msctx.errors import Diagnostic, FileError
from msctx.native import distributed
from msctx.native.distributed import number
from msctx.run.record import Record


def is_one_of_several() -> bool:
    """Whether a launcher has started this process beside others."""
    return number("WORLD_SIZE") > 1


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
    mine, store = f"rank_{rank()}", distributed.agents_store("run") if distributed.has_agent() else None
    if out is None and store is None:
        return Record.create(None, parent, f"{name}-{mine}")
    if out is None:
        out = _agreed_folder(store, parent, name)
    if restart := number("TORCHELASTIC_RESTART_COUNT"):
        mine = f"restart_{restart}/{mine}"
    return Record.create(str(Path(out) / mine), parent, name)


def _agreed_folder(store: Any, parent: str, name: str) -> str:
    """Rank 0 makes the folder of the run."""
    if rank() == 0:
        folder = str(Record.create(None, parent, name).folder)
        store.set("run_dir", folder)
        return folder
    try:
        return str(store.get("run_dir").decode())
    except RuntimeError:
        raise FileError(
            [Diagnostic("", f"rank 0 has made no run directory for {distributed.WAIT.seconds} s", where=parent)]
        ) from None

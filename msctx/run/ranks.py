"""Several processes are one run: `torchrun -m msctx run FILE`, which `msctx run FILE --nproc N` starts: one report, one folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from msctx.run.record import Record

RUN_ID = "msctx"
"""That `msctx run --nproc` gives to torchrun's agent."""


def _number(variable: str) -> int:
    """What a launcher has put into a variable; 0: it is not there, or no number."""
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else 0


def is_one_of_several() -> bool:
    """Whether a launcher started this process beside others. Torchrun may also start one alone."""
    return "TORCHELASTIC_RUN_ID" in os.environ or _number("WORLD_SIZE") > 1


def rank() -> int:
    """The number of this process in its run; 0 where it is alone."""
    return _number("RANK") if is_one_of_several() else 0


def record(out: str | None, parent: str, name: str) -> Record:
    """The folder of this process: that of the run; where there are several processes, ``rank_0`` and so on in it.

    Without *out*, each process of another launcher than torchrun has its own folder: they do not know of each other yet. After a
    restart a rank overwrites its record.
    """
    if not is_one_of_several():
        return Record.create(out, parent, name)
    mine = f"rank_{rank()}"
    if out is None and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return Record.create(None, parent, f"{name}-{mine}")
    folder = Path(out or _agreed(parent, name)) / mine
    if os.environ.get("TORCHELASTIC_RUN_ID") == RUN_ID or _number("TORCHELASTIC_RESTART_COUNT"):
        shutil.rmtree(folder, ignore_errors=True)  # the launching process has seen that it is no other run's
    return Record.create(str(folder), parent, name)


def _agreed(parent: str, name: str) -> str:
    """A new folder: that of the rank that came first to the store of torchrun's agent, which outlives restarts."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # it is not in __all__

    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    return str(store.compare_set("msctx/run_dir", "", str(Record.fresh(parent, name))).decode())

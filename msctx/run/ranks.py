"""`torchrun -m msctx run FILE`: several processes are one run, with one report on the terminal and one folder."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from msctx.errors import Diagnostic, FileError
from msctx.run.record import Record

WAIT = timedelta(seconds=60)
"""For rank 0 to make the folder."""


def is_one_of_several() -> bool:
    """Whether a launcher has started this process beside others."""
    return _number("WORLD_SIZE") > 1


def rank() -> int:
    """The number of this process in its run, as launchers pass it; 0 where it is alone."""
    return _number("RANK") if is_one_of_several() else 0


def record(out: str | None, parent: str, name: str) -> Record:
    """The folder of this process: that of the run, and in it ``rank1`` and so on. It is made.

    Where the launcher is not torchrun, the processes do not know of each other before the entry has made its process group: without
    *out* each then has a folder of its own.
    """
    mine, store = rank(), _store()
    if mine == 0:
        made = Record.create(out, parent, name)
        if store is not None:
            store.set("run_dir", str(made.folder))
        return made
    if out is not None:
        return Record.create(str(Path(out) / f"rank{mine}"), parent, name)
    if store is None:
        return Record.create(None, parent, f"{name}-rank{mine}")
    try:
        folder = store.get("run_dir").decode()
    except RuntimeError:
        raise FileError([Diagnostic("", f"rank 0 has made no run directory for {WAIT.seconds} s", where=parent)]) from None
    return Record.create(str(Path(folder) / f"rank{mine}"), parent, name)


def _store() -> Any:
    """Where torchrun's processes leave word for each other; ``None`` without torchrun."""
    if not is_one_of_several() or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # they are not in its __all__

    host, port = os.environ.get("MASTER_ADDR", "localhost"), _number("MASTER_PORT")
    store = TCPStore(host, port, is_master=False, timeout=WAIT)
    return PrefixStore(f"msctx/run/{_number('TORCHELASTIC_RESTART_COUNT')}", store)


def _number(variable: str) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else 0

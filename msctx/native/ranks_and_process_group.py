"""What the processes of one run have in common: ranks, and the process group of the program."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Sequence
from itertools import groupby
from typing import Any
from weakref import WeakKeyDictionary

_runs: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
_numbers = itertools.count(1)


def module() -> Any:
    """torch.distributed, if this process is one of several in a process group, else ``None``."""
    dist = sys.modules.get("torch.distributed")
    is_one_of_several = dist is not None and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return dist if is_one_of_several else None


def is_worker() -> bool:
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def run() -> int:
    """A number for the current default process group; 0: this process is alone, or it is a worker of a rank's DataLoader."""
    dist = module()
    if dist is None or is_worker():
        return 0
    if (found := _runs.get(dist.group.WORLD)) is None:
        found = _runs[dist.group.WORLD] = next(_numbers)
    return found


def rank() -> int | None:
    """The rank of this process, or ``None`` if it is alone."""
    dist = module()
    return None if dist is None else int(dist.get_rank())


def known_rank() -> int | None:
    """The rank of this process, also before there is a process group; ``None`` if no launcher has given it one."""
    if (found := rank()) is not None:
        return found
    launchers = "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"
    return next((int(text) for name in launchers if (text := os.environ.get(name, "")).isdecimal()), None)


def rank_or_0() -> int:
    """:func:`known_rank`, for names of files: 0 where this process is alone."""
    return known_rank() or 0


def gathered(mine: Any) -> list[Any]:
    """The objects of all ranks, in their order. A collective: all ranks of the process group call it."""
    dist = module()
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return found


def of_first(mine: Any, source: int = 0, group: Any = None) -> Any:
    """The object of rank 0, or of the *source* of a group. A collective: all ranks of the process group call it."""
    found = [mine]
    module().broadcast_object_list(found, src=source, group=group)
    return found[0]


def flight_record() -> dict[str, Any] | None:
    """The trace of PyTorch's Flight Recorder; ``None``: it holds no collective."""
    for kind in ("nccl", "fr"):
        dump = getattr(sys.modules.get("torch._C._distributed_c10d"), f"_dump_{kind}_trace_json", None)
        found: dict[str, Any] = json.loads(dump()) if dump else {}
        if found.get("entries"):
            return found
    return None


def in_words(ranks: Sequence[int]) -> str:
    """``[0, 1, 2, 5]`` as ``ranks 0-2, 5``."""
    runs = [[rank for _, rank in run] for _, run in groupby(enumerate(ranks), lambda pair: pair[1] - pair[0])]
    text = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"rank{'s' * (len(ranks) > 1)} {text}"

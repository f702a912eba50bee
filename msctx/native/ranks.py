"""What the processes of one run have in common: ranks, the process group of the program, batches that one loads for others."""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
from collections.abc import Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from weakref import WeakKeyDictionary

from msctx.errors import Diagnostic, OptionError, ScopeError, named
from msctx.native.counter_lifetimes import Held

_runs: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
_numbers = itertools.count(1)
LAUNCHERS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
"""The variables in which launchers give a process its rank."""


def module() -> Any:
    """torch.distributed, if this process is one of several in a process group, else ``None``."""
    dist = sys.modules.get("torch.distributed")
    is_one_of_several = dist is not None and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return dist if is_one_of_several else None


def _is_worker() -> bool:
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def run() -> int:
    """A number for the current default process group; 0: this process is alone, or it is a worker of a rank's DataLoader."""
    dist = module()
    if dist is None or _is_worker():
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
    return next((int(text) for name in LAUNCHERS if (text := os.environ.get(name, "")).isdecimal()), None)


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


# --- one process loads batches for others -----------------------------------------------------------------------------
# Its DataLoader broadcasts each batch, and the other processes of the machine receive them. All of them iterate over the same loaders
# in the same order and stop at the same batch.


class _Here(threading.local):
    def __init__(self) -> None:
        self.requested: dict[str, Any] | None = None


@dataclass
class _Share:
    """A group of gloo; *rank* counts the processes of this machine, *number* the iterations."""

    group: Any
    source: int
    rank: int
    number: int = 0

    def exchange(self, message: Any = None) -> Any:
        return of_first(message, self.source, self.group)


_here = _Here()
_plain: Any = None
"""DataLoader's own ``__iter__``."""
_shares: dict[tuple[int, int, tuple[int, ...]], _Share] = {}


def shared() -> dict[str, Any] | None:
    return _here.requested


def share(requested: dict[str, Any] | None) -> None:
    """Share the batches of loaders over which this thread iterates: ``rank`` and ``ranks`` count the processes of this machine."""
    _sharing.want((requested is not None) - (_here.requested is not None))
    _here.requested = requested


@contextmanager
def _replaced() -> Iterator[None]:
    global _plain
    from torch.utils.data import DataLoader

    _plain, DataLoader.__iter__ = DataLoader.__iter__, _iterate  # type: ignore[method-assign]
    yield
    if DataLoader.__iter__ is _iterate:
        DataLoader.__iter__ = _plain  # type: ignore[method-assign]


_sharing = Held(_replaced)


def _iterate(loader: Any) -> Any:
    requested = _here.requested
    ranks = sorted({0, *requested["ranks"]}) if requested else []
    if requested is None or len(ranks) < 2 or requested["rank"] not in ranks or _is_worker():
        return _plain(loader)
    share = _share(requested["rank"], ranks)
    share.number += 1
    size = len(loader.dataset) if isinstance(loader.dataset, Sized) else None
    what = f"{type(loader.dataset).__qualname__} of size {size} in batches of {loader.batch_size}"
    return _received(share, share.number, what) if share.rank else _sent(share, share.number, what, loader)


def _share(mine: int, ranks: list[int]) -> _Share:
    if not (number := run()):
        text, hint = "no process group connects the processes", "call torch.distributed.init_process_group first"
        raise OptionError([Diagnostic("local_rank_id", text, suggestion=hint)])
    key = number, mine, tuple(ranks)
    if key not in _shares:
        first = (rank() or 0) - mine
        members = [first + one for one in ranks]
        group = module().new_group(members, backend="gloo", use_local_synchronization=True)
        _shares[key] = _Share(group, first, mine)
    return _shares[key]


def _sent(share: _Share, number: int, what: str, loader: Any) -> Iterator[Any]:
    try:
        for batch in _plain(loader):
            share.exchange((number, what, "batch", batch))
            yield batch
    except Exception as error:
        share.exchange((number, what, "error", named(error)))
        raise
    share.exchange((number, what, "end", None))


def _received(share: _Share, number: int, what: str) -> Iterator[Any]:
    while True:
        theirs, their_what, kind, content = share.exchange()
        if (theirs, their_what) != (number, what):
            raise ScopeError(
                f"local_rank_id=0 is in iteration {theirs}, over {their_what}; local_rank_id={share.rank} is in iteration {number}, "
                f"over {what}. Iterate over the same loaders in the same order, and stop at the same batch"
            )
        if kind == "error":
            raise RuntimeError(f"local_rank_id=0, which loads the data, could not: {content}")
        if kind == "end":
            return
        yield content

"""One process loads batches for others of its machine.

Its DataLoader broadcasts each batch, and the other processes receive them. All of them iterate over the same loaders in the same
order and stop at the same batch.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from msctx.errors import Diagnostic, OptionError, ScopeError, named
from msctx.native.counter_lifetimes import Held
from msctx.native.ranks_and_process_group import is_worker, module, of_first, rank, run


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
    if requested is None or len(ranks) < 2 or requested["rank"] not in ranks or is_worker():
        return _plain(loader)
    share = _share(requested["rank"], ranks)
    share.number += 1
    return _received(share, share.number) if share.rank else _sent(share, share.number, loader)


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


def _sent(share: _Share, number: int, loader: Any) -> Iterator[Any]:
    try:
        for batch in _plain(loader):
            share.exchange((number, "batch", batch))
            yield batch
    except Exception as error:
        share.exchange((number, "error", named(error)))
        raise
    share.exchange((number, "end", None))


def _received(share: _Share, number: int) -> Iterator[Any]:
    while True:
        theirs, kind, content = share.exchange()
        if theirs != number:
            raise ScopeError(
                f"local_rank_id=0 is in iteration {theirs}, local_rank_id={share.rank} in iteration {number}. Iterate over the same "
                "loaders in the same order, and stop at the same batch"
            )
        if kind == "error":
            raise RuntimeError(f"local_rank_id=0, which loads the data, could not: {content}")
        if kind == "end":
            return
        yield content

"""One process of a machine loads the data for others: iterating over a DataLoader there sends each batch, elsewhere it receives them.

The processes find each other by the store of their process group, once; from then on they share a folder on their machine. Each batch
is one file with a link for each receiver, who removes it. So nothing is a collective: whoever stops early says so, and whoever has
died holds the lock on its own file no longer. The last one out removes the folder.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Sized
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from msctx import locks
from msctx.errors import Diagnostic, OptionError, ScopeError, named
from msctx.native import alive, distributed
from msctx.notices import warn

SECONDS = 1800.0
"""That a process waits for another one that lives, as torch's own collectives do; unless hccl_timeout sets both limits."""
TO_COME = 300.0
"""That it waits for one of which it has seen nothing yet: that one may have failed before, or not iterate at all."""
SILENT = 30.0
"""Of those, what it waits before it warns."""
STORE = 10.0
"""That the store of the process group has to take the place of the folder."""
POLL = 0.05
"""Between two questions whether it is there."""
LINGER = 10.0
"""That the process which has loaded the batches waits at its end for those that have not come for them."""
AHEAD = 8
"""How many batches the one that loads may be ahead of the slowest."""
LONGEST_NAP = 0.01
LOST = "local_rank_id={} cannot find those with which it shares batches: the store of the process group {}; start the run anew"


class _Here(threading.local):
    def __init__(self) -> None:
        self.asked: dict[str, Any] | None = None


_here = _Here()
_lock, _sharing = locks.plain(), locks.plain()
_plain: Any = None
"""What DataLoader itself does."""
_threads = 0
"""How many threads share batches."""
_shares: dict[tuple[int, int, tuple[int, ...]], _Share] = {}


def read() -> dict[str, Any] | None:
    return _here.asked


def write(asked: dict[str, Any] | None) -> None:
    """Share the batches of loaders over which this thread iterates: ``rank`` and ``ranks`` count the processes of this machine."""
    global _plain, _threads
    from torch.utils.data import DataLoader

    with _lock:
        _threads += (asked is not None) - (_here.asked is not None)
        _here.asked = asked
        if _threads and DataLoader.__iter__ is not _iterate:
            _plain, DataLoader.__iter__ = DataLoader.__iter__, _iterate  # type: ignore[method-assign]
        elif not _threads and DataLoader.__iter__ is _iterate:
            DataLoader.__iter__ = _plain  # type: ignore[method-assign]


def _iterate(loader: Any) -> Any:
    from torch.utils.data import get_worker_info

    asked = _here.asked
    others = [rank for rank in asked["ranks"] if rank] if asked else []
    if asked is None or not others or asked["rank"] not in (0, *others) or get_worker_info() is not None:
        return _plain(loader)
    share = _share(asked["rank"], others, asked.get("seconds"))
    return _Receiver(share, loader) if asked["rank"] else _Sender(share, _plain(loader), loader)


def _share(rank: int, others: list[int], seconds: float | None) -> _Share:
    """What this process has in common with the others of its machine, in the process group that is there now."""
    group = distributed.run()
    if not group:
        text = "there is no process group by which the others could be found"
        hint = "call torch.distributed.init_process_group first"
        raise OptionError([Diagnostic("local_rank_id", text, suggestion=hint)])
    with _sharing:  # a receiver waits here for the one that loads
        found = _shares.get(key := (group, rank, tuple(others)))
        if found is None:
            before = {str(share.folder) for share in _shares.values()}
            found = _shares[key] = _Share(rank, others, before, seconds)
        found.seconds = seconds
        return found


class _Share:
    """The folder, and how often this process has begun to iterate."""

    def __init__(self, rank: int, others: list[int], before: Collection[str], seconds: float | None) -> None:
        self.rank, self.others, self.number, self.seconds = rank, others, 0, seconds
        first = (distributed.rank() or 0) - rank
        name = f"msctx/batches/{distributed.restarts()}/{first}/{others}"
        if rank == 0:
            self.folder = Path(tempfile.mkdtemp(prefix="msctx-batches-"))
            self.alive = alive.hold(self.folder / "alive.0")
            self._tell(name)
        else:
            self.folder = self._found(name, before)
            try:
                self.alive = alive.hold(self.folder / f"alive.{rank}")
            except OSError:
                text = (
                    f"rank {first} shares its batches in {self.folder}, which is not on this machine, or was removed at its end"
                )
                hint = "count the ranks of each machine from 0"
                raise OptionError([Diagnostic("local_rank_id", text, suggestion=hint)]) from None
        atexit.register(self.leave, os.getpid())

    def _tell(self, name: str) -> None:
        store, folder = distributed.store(), str(self.folder)
        asked = distributed.Asked(lambda: store.set(name, folder))
        asked.wait(STORE)
        if not asked.found:
            self.alive.close()
            shutil.rmtree(self.folder, ignore_errors=True)
            raise ScopeError(LOST.format(0, f"is lost, or gave no answer within {STORE:g} s"))

    def _found(self, name: str, before: Collection[str]) -> Path:
        """*before*: the folders of earlier process groups, which may have had the same store."""
        ended, store, self.folder = threading.Event(), distributed.store(), Path()

        def look() -> str:
            while not store.check([name]) or (folder := str(store.get(name).decode())) in before:
                if ended.wait(POLL):
                    return ""
            return folder

        asked = distributed.Asked(look)  # one thread, however long the store gives no answer

        def has_begun() -> bool:
            if asked.is_lost:
                raise ScopeError(LOST.format(self.rank, "is lost"))
            return bool(asked.found)

        try:
            self.wait(has_begun, 0, " to begin")
        finally:
            ended.set()
        return Path(asked.found[0])

    def leave(self, process: int) -> None:
        if process != os.getpid():  # a worker that was forked
            return
        self.alive.close()
        end = time.monotonic() + LINGER
        with suppress(KeyboardInterrupt):
            while not self.rank and not all(map(self._has_come, self.others)) and time.monotonic() < end:
                time.sleep(POLL)
        if not any(self._has_come(rank) and self.lives(rank) for rank in (0, *self.others)):
            shutil.rmtree(self.folder, ignore_errors=True)

    def _has_come(self, rank: int) -> bool:
        return self._file(rank).exists()

    def lives(self, rank: int) -> bool:
        """Whether the process of a rank is there, or has not come yet."""
        return alive.is_held(self._file(rank))

    def _file(self, rank: int) -> Path:
        return self.folder / f"alive.{rank}"

    def wait(self, done: Callable[[], bool], rank: int, what: str = "") -> None:
        """Wait for the process of a rank.

        Raises:
            ScopeError: it has ended without doing it, or takes too long.
        """
        began, nap = time.monotonic(), 1e-4
        while not done():
            has_come = self.folder != Path() and self._has_come(rank)
            gone = has_come and not self.lives(rank)
            waited, limit = time.monotonic() - began, self._limit(has_come)
            waits = f"local_rank_id={self.rank} waits for local_rank_id={rank}{what}"
            if (gone and not done()) or waited > limit:
                never = "it has not" if has_come else "it has not begun to share batches"
                why = "its process has ended" if gone else f"{never} for {limit:g} s (hccl_timeout sets another limit)"
                raise ScopeError(
                    f"{waits}: {why}. All that share batches iterate over the same loaders in the same order; one that reads its own "
                    "data does so outside the context"
                )
            if not has_come and waited > SILENT:
                then = f"; that is an error after {limit:g} s" if limit < inf else ""
                warn("local_rank_id", waits, f"{waits}, which has not begun to share batches{then}")
            time.sleep(nap)
            nap = min(2 * nap, LONGEST_NAP)

    def _limit(self, has_come: bool) -> float:
        if self.seconds is None:
            return SECONDS if has_come else TO_COME
        return self.seconds or inf  # as hccl_timeout=0 means it

    def begin(self) -> Path:
        with _lock:
            self.number += 1
            return self.folder / str(self.number)


def _described(loader: Any) -> list[Any]:
    size = len(loader.dataset) if isinstance(loader.dataset, Sized) else None
    return [type(loader.dataset).__qualname__, size, loader.batch_size]


def _put(path: Path, content: Any) -> None:
    """Whoever sees the file sees all of it."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(json.dumps(content))
    new.replace(path)


class _Sender:
    """Iterates over a loader, and gives each batch to the others, too."""

    def __init__(self, share: _Share, batches: Any, loader: Any) -> None:
        self._share, self._batches, self._index, self._is_open = share, iter(batches), 0, True
        self._tidy()
        self._folder = share.begin()
        self._folder.mkdir()
        _put(self._folder / "begin", _described(loader))

    def __iter__(self) -> _Sender:
        return self

    def __len__(self) -> int:
        return len(self._batches)

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
            if self._is_open:
                self._send(batch)
            return batch
        except StopIteration:
            self._end()
            raise
        except BaseException as error:
            self._end(named(error))
            raise

    def _send(self, batch: Any) -> None:
        import torch

        if self._index >= AHEAD:
            self._wait_for_the_slowest(self._index - AHEAD)
        new = self._folder / "new"
        torch.save(batch, new)
        for rank in self._share.others:
            if not self._has_stopped(rank):
                os.link(new, self._folder / f"{self._index}.{rank}")
        new.unlink()
        self._index += 1

    def _wait_for_the_slowest(self, index: int) -> None:
        for rank in self._share.others:
            self._share.wait(partial(self._has_taken, index, rank), rank, " to take a batch")

    def _has_taken(self, index: int, rank: int) -> bool:
        return not (self._folder / f"{index}.{rank}").exists() or self._has_stopped(rank)

    def _has_stopped(self, rank: int) -> bool:
        return (self._folder / f"closed.{rank}").exists() or not self._share.lives(rank)

    def _end(self, error: str = "") -> None:
        if self._is_open:
            self._is_open = False
            with suppress(OSError):
                _put(self._folder / "end", error)

    def __del__(self) -> None:
        if getattr(self, "_is_open", False) and hasattr(self, "_folder"):
            self._end()

    def _tidy(self) -> None:
        """Remove what is left of iterations that all have done with."""
        for folder in self._share.folder.iterdir():
            if folder.is_dir() and all((folder / f"closed.{rank}").exists() for rank in self._share.others):
                shutil.rmtree(folder, ignore_errors=True)


class _Receiver:
    """Gives the batches that another process loads. The loader's own dataset is left alone."""

    def __init__(self, share: _Share, loader: Any) -> None:
        self._share, self._loader, self._index = share, loader, 0
        self._folder = share.begin()
        self._is_open = True
        begin = self._folder / "begin"
        share.wait(begin.exists, 0, " to begin")
        theirs, mine = json.loads(begin.read_text()), _described(loader)
        if theirs != mine:
            here, there = (f"iterates over {name} of size {size} in batches of {batch}" for name, size, batch in (mine, theirs))
            raise ScopeError(
                f"local_rank_id=0 {there}, local_rank_id={share.rank} {here}: all that share batches iterate over the same loaders "
                "in the same order"
            )

    def __iter__(self) -> _Receiver:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        path, end = self._folder / f"{self._index}.{self._share.rank}", self._folder / "end"
        if not self._is_open:
            raise StopIteration
        self._share.wait(lambda: path.exists() or end.exists(), 0, " to load a batch")
        if path.exists():  # the end is written last
            return self._take(path)
        self._close()
        if error := json.loads(end.read_text()):
            raise RuntimeError(f"local_rank_id=0, which loads the data, could not: {error}")
        raise StopIteration

    def _take(self, path: Path) -> Any:
        import torch

        batch = torch.load(path, weights_only=False)
        path.unlink()
        self._index += 1
        if self._loader.pin_memory and torch.cuda.is_available():
            from torch.utils.data._utils.pin_memory import pin_memory

            return pin_memory(batch)
        return batch

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            with suppress(OSError):
                _put(self._folder / f"closed.{self._share.rank}", True)

    def __del__(self) -> None:
        if getattr(self, "_is_open", False):
            self._close()

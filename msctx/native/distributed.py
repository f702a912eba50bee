"""Several processes of one run (torch.distributed): all of them choose by the same tuning results.

Nothing waits: a collective at the entry of a scope would hang where one rank alone enters it. The first process that needs the
results puts them into the store by which the processes found each other; every other one takes what is there.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import sys
import threading
import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import groupby
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from msctx.options import carried

T = TypeVar("T")

WAIT = timedelta(seconds=60)
"""For the store of torchrun's agent, and for what another rank leaves there."""
PATIENCE = 10.0
"""Seconds that a store has to name entries of a tuning file; whoever has none goes on without."""

_runs: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
_numbers = itertools.count(1)  # that of a group that is gone is not used again


def module() -> Any:
    """torch.distributed, where this process is one of several."""
    dist = sys.modules.get("torch.distributed")
    is_one_of_several = dist is not None and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return dist if is_one_of_several else None


def run() -> int:
    """A number for the process group that is there now; 0: this process is alone."""
    dist = module()
    if dist is None:
        return 0
    if (found := _runs.get(dist.group.WORLD)) is None:
        found = _runs[dist.group.WORLD] = next(_numbers)
    return found


def rank() -> int | None:
    """The rank of this process, or ``None`` where it is alone."""
    dist = module()
    return None if dist is None else int(dist.get_rank())


LAUNCHERS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
"""The variables in which launchers give a process its rank."""


def known_rank() -> int | None:
    """The rank of this process, also before there is a process group; ``None`` where nobody has given it one."""
    if (found := rank()) is not None:
        return found
    return next((int(text) for name in LAUNCHERS if (text := os.environ.get(name, "")).isdecimal()), None)


def size() -> int:
    """How many processes the process group has; 1: there is none."""
    dist = module()
    return 1 if dist is None else int(dist.get_world_size())


def flight_record() -> dict[str, Any] | None:
    """The trace of PyTorch's Flight Recorder; ``None``: it holds no collective."""
    for kind in ("nccl", "fr"):
        dump = getattr(sys.modules.get("torch._C._distributed_c10d"), f"_dump_{kind}_trace_json", None)
        found: dict[str, Any] = json.loads(dump()) if dump else {}
        if found.get("entries"):
            return found
    return None


# --- stores -----------------------------------------------------------------------------------------------------------


def number(variable: str) -> int:
    """What a launcher has put into a variable; 0: it is not there, or no number."""
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else 0


def restarts() -> int:
    """How often ranks were started before that have used the same store; 0 where each start has one of its own, as in `msctx run`.

    With several nodes, torchrun's agent tells ranks only how often those of their own node have failed.
    """
    return number("TORCHELASTIC_RESTART_COUNT") if _agent_has_store() else 0


def of_start(name: str) -> str:
    """*name* in the store of the process group, for this start of the ranks alone; where torchrun starts them on several nodes, all
    starts have the same, since not all ranks know of the same number of :func:`restarts`."""
    return f"{name}/{restarts() if number('GROUP_WORLD_SIZE') <= 1 else 0}"


def _agent_has_store() -> bool:
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


_IS_WORKER = "RANK" in os.environ and any(word.startswith("from multiprocessing.") for word in sys.orig_argv)


def is_worker_of_rank() -> bool:
    """Whether a rank has started this process, such as a worker of its DataLoader, which has the rank's variables."""
    return _IS_WORKER


def has_agent() -> bool:
    """Whether torchrun has started this process beside others; its agent has a store for them, before there is a process group."""
    return _agent_has_store() and number("WORLD_SIZE") > 1


def agents_store(name: str) -> Any:
    """The store of torchrun's agent, under a prefix; connects to it."""
    return _connected(os.environ.get("MASTER_ADDR", "localhost"), number("MASTER_PORT"), f"msctx/{name}")


def has_launchers_store() -> bool:
    """Whether `msctx run --nproc` has started this process beside others. The store by which its nodes found each other outlives
    restarts, and has a prefix for each."""
    return number("WORLD_SIZE") > 1 and "store" in carried.read(os.environ)


def launchers_store() -> Any:
    """Connects to it."""
    return _connected(*carried.read(os.environ)["store"])


def _connected(host: str, port: int, prefix: str) -> Any:
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # they are not in its __all__

    return PrefixStore(prefix, TCPStore(host, port, is_master=False, timeout=WAIT))


def store() -> Any:
    """The one by which the processes of this run found each other.

    Raises:
        RuntimeError, ValueError, AttributeError: it is lost; there is no group; torch has none of that name.
    """
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_store()


class Asked(Generic[T]):
    """What a thread of its own asks of the store: nothing of a store's may hold up a training."""

    def __init__(self, call: Callable[[], T]) -> None:
        self.found: list[T] = []
        self._call = call
        self._thread = threading.Thread(target=self._work, name="msctx-store", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        with suppress(RuntimeError, AttributeError, ValueError):
            self.found.append(self._call())

    def wait(self, seconds: float) -> None:
        self._thread.join(seconds)

    @property
    def is_lost(self) -> bool:
        """Whether there will be no answer; a store that is silent may still give one."""
        return not self._thread.is_alive() and not self.found


def within(seconds: float, call: Callable[[], T]) -> T | None:
    """What *call* returns in that time; ``None``: it has not, or the store is lost."""
    asked = Asked(call)
    asked.wait(seconds)
    return asked.found[0] if asked.found else None


_silent: set[tuple[int, str]] = set()
"""The process groups whose store has given no answer to what is asked step by step, each with the option that asked: one may ask much
more of a store than another."""


def is_silent(option: str) -> bool:
    """Whether the store of this process group has given no answer: who has none now does not wait again in each step."""
    return (run(), option) in _silent


def in_step(option: str, seconds: float, call: Callable[[], T]) -> T | None:
    """As :func:`within`, for what is asked step by step."""
    found = within(seconds, call)
    if found is None:
        _silent.add((run(), option))
    return found


def packed(text: str) -> str:
    return base64.b64encode(zlib.compress(text.encode())).decode()


def unpacked(data: bytes) -> str | None:
    """``None``: somebody else's under our name."""
    try:
        return zlib.decompress(base64.b64decode(data)).decode()
    except (ValueError, zlib.error):
        return None


def first_of(store: Any, key: str, mine: str) -> str | None:
    """What the first rank put under *key* that came; ``None``: somebody else's."""
    return unpacked(store.compare_set(key, "", packed(mine)))


class Alike(NamedTuple):
    """Ranks that have the same, and what one of them has put into the store; ``""``: it was not read."""

    rank: int
    text: str
    ranks: list[int]


READ = 4
"""Texts that a rank reads beside that of the first that came."""


def post(store: Any, of: str, rank: int, mine: str, same: str) -> list[Alike]:
    """Put *mine* under *of*; the first rank that came, where it has something else than this one. *same* is equal on ranks that have
    the same.

    Nobody waits, and where they agree it costs two calls of the store.
    """
    text = first_of(store, f"{of}/first", json.dumps([rank, same, mine]))
    first, its, theirs = json.loads(text) if text else (rank, same, mine)
    if first == rank or its == same:
        store.append(f"{of}/all", f"{rank} ")
        return []
    store.set(f"{of}/{rank}", packed(mine))
    store.append(f"{of}/all", f"{rank}:{same} ")
    return [Alike(first, theirs, [first])]


def collect(store: Any, of: str, rank: int, mine: str, first: Alike) -> list[Alike]:
    """All ranks that have come until now, by what they have; *first*: what :func:`post` has found.

    However many there are and however many of them differ, it costs a few calls: one key has all of them, and of what is neither the
    first's nor this rank's only some texts are read.
    """
    entries = (entry.partition(":") for entry in store.get(f"{of}/all").decode().split())
    has = {int(other): same for other, _, same in entries} | {first.rank: ""}
    holders: defaultdict[str, list[int]] = defaultdict(list)
    for other in sorted(has):
        holders[has[other]].append(other)
    found = [first._replace(ranks=holders.pop("")), Alike(rank, mine, holders.pop(has[rank]))]
    for number, ranks in enumerate(holders.values()):
        text = unpacked(store.get(f"{of}/{ranks[0]}")) if number < READ else None
        found.append(Alike(ranks[0], text or "", ranks))
    return found


RUNS = 8
"""Of ranks with subsequent numbers, which a message names."""


def in_words(ranks: Sequence[int]) -> str:
    """``[0, 1, 2, 5]`` as ``ranks 0-2, 5``."""
    runs = [[rank for _, rank in run] for _, run in groupby(enumerate(ranks), lambda pair: pair[1] - pair[0])]
    text = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs[:RUNS])
    more = f" and {rest} more" if (rest := sum(map(len, runs[RUNS:]))) else ""
    return f"rank{'s' * (len(ranks) > 1)} {text}{more}"


def agreed(name: str, mine: str) -> str | None:
    """The text that the first process of this run gave under *name*; ``None`` where no store has it, or gives no answer."""
    return within(PATIENCE, lambda: first_of(store(), f"msctx/tuning/{name}", mine))

"""Tuning results between the library and the file: what is known goes in when a policy is entered, what was measured comes out."""

from __future__ import annotations

import atexit
import os
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from pathlib import Path

from msctx import notices
from msctx.errors import FileError
from msctx.native import build, core, memory, ranks_and_process_group, tuning_file
from msctx.native.cachedir import say
from msctx.native.core import Core
from msctx.native.tuning_file import GRAPH, Entry, Key, Stamp, stamp

Permission = IntEnum("Permission", "NOW LATER FOR_NEXT_RUN OTHER_RANK NOT_THIS_CALL BUSY", start=0)
"""The answer to the library when a problem is about to be measured; as in kernels/include/msctx/interface.h."""


@dataclass(slots=True)
class _Table:
    """The results of one file as the library knows them. In a process group all ranks use the entries of rank 0's file."""

    number: int
    path: Path
    run: int
    place: str
    read: tuple[int, ...] | None = None
    """The state of the file when it was read."""
    graphs: dict[Key, Entry] = field(default_factory=dict)
    """Which way graphs run."""

    def refresh(self, library: Core) -> None:
        """Give the library what the file has got since; what it knows already stays."""
        try:
            status = self.path.stat()
            now: tuple[int, ...] = status.st_mtime_ns, status.st_size, status.st_ino
        except OSError:
            now = ()
        if now == self.read or (self.run and self.read is not None):
            return
        self.read, known = now, dict[Key, Entry]()
        try:
            known = tuning_file.read(self.path).get(stamp(library, self.place), known)
        except FileError as error:
            notices.warn(f"the tuning file is not used: {_text(error)}")
        known = ranks_and_process_group.of_first(known) if self.run else known
        results = [entry for entry in known.values() if entry.ran]
        self.graphs |= {entry.key: entry for entry in results if entry.direction == GRAPH}
        others = [{**asdict(entry), "source": _source(entry)} for entry in results if entry.direction != GRAPH]
        library.c.msctx_learn(self.number, core.json_of(others))


_lock = threading.RLock()
_tables: dict[tuple[Path, int, str], _Table] = {}


def table(library: Core, given: str | None, place: str = "cpu", *, only_records: bool = False) -> int:
    """The number under which the library knows a place's results of the file of ``tuning_file``, as the file is now.

    *only_records*: the library adds problems to the file, and uses no results.
    """
    keep(library)
    with _lock:
        if not _tables:
            library.c.msctx_ask_before_measuring(permission)
            atexit.register(keep, library)
        path, run = tuning_file.location(given), 0 if only_records else ranks_and_process_group.run()
        found = _tables.setdefault((path, run, place), _Table(len(_tables) + 1, path, run, place))
        if not only_records:
            found.refresh(library)
        return found.number


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime())


def keep(library: Core) -> None:
    """Write what was measured or recorded since the last time; what cannot be written is reported, and holds for this process."""
    with _lock:
        when = now()
        found: dict[int, list[Entry]] = {}
        for row in library.c.msctx_measured() or []:
            found.setdefault(row.pop("table"), []).append(Entry(**row, when=when))
        for number, entries in found.items():
            _merge([*_tables.values()][number - 1], entries)


def _merge(one: _Table, entries: list[Entry]) -> None:
    try:
        tuning_file.merge(one.path, {stamp(core.load(), one.place): {entry.key: entry for entry in entries}})
    except FileError as error:
        notices.warn_or_print(f"what was measured or recorded is not kept: {_text(error)}")


def _of_graphs(given: str | None) -> _Table | None:
    """The table that a policy has made when it came into force: to make one here might wait for other ranks."""
    return _tables.get((tuning_file.location(given), ranks_and_process_group.run(), "cpu"))


def graph(given: str | None, key: Key) -> Entry | None:
    """What the file of ``tuning_file`` has about a graph."""
    return one.graphs.get(key) if (one := _of_graphs(given)) else None


def permission_of_graphs(given: str | None) -> Permission:
    return Permission(permission(one.number)) if (one := _of_graphs(given)) else Permission.NOT_THIS_CALL


def keep_graph(given: str | None, entry: Entry) -> None:
    if (one := _of_graphs(given)) is not None:
        one.graphs[entry.key] = entry
        _merge(one, [entry])


def here() -> dict[str, Stamp]:
    """The stamps of this machine by kind of device: none where the native core is not built, nor of CUDA without a GPU to ask."""
    import torch

    if build.obstacle() or build.found() is None:
        return {}
    places = ["cpu", *(["cuda"] if torch.cuda.device_count() else [])]  # on an NPU nothing is measured
    return {place: stamp(core.load(), place) for place in places}


def _source(entry: Entry) -> str:
    return f"from the tuning file: measured {entry.when} by {entry.threads} thread{'s' * (entry.threads != 1)}"


def permission(number: int) -> int:
    """Called by the library in the thread of a convolution, before a problem is measured and while it is; *number*: of its table.

    What was measured before is written first: a crash loses one. What a signal's handler raises is passed on by the library.
    """
    keep(library := core.load())
    if _is_compiling():
        return Permission.NOT_THIS_CALL
    place = [*_tables.values()][number - 1].place
    if place == "cpu" and memory.share_left() < 0.2:  # what is tried takes memory of its own; on a GPU it fails without harm
        return Permission.LATER
    _progress(library)
    rank = ranks_and_process_group.rank()
    if is_busy() and rank in (None, 0):  # all ranks choose alike
        return Permission.BUSY if rank is None else Permission.LATER
    return Permission.NOW if rank is None else Permission.FOR_NEXT_RUN if rank == 0 else Permission.OTHER_RANK


_due = 3.0
"""Seconds of measuring after which a line on stderr shows it; then one every ten seconds."""


def _progress(library: Core) -> None:
    """A first step under ``performance`` may take a minute."""
    global _due
    if (seconds := library.c.msctx_measuring_seconds()) >= _due:
        _due = seconds + 10
        count = f"{library.c.msctx_measurements()} so far, in {seconds:.0f} s of at most 120"
        say(f"performance measures each convolution and matmul on its first call: {count}")


def is_busy() -> bool:
    """Whether other processes take cores from those that PyTorch's threads use: what gains meanwhile need not gain later.

    Threads of this process that wait for the next parallel region are runnable, too, and do not count. What wakes up for a moment
    does not count, either.
    """
    with suppress(OSError):  # not Linux
        if not _others_take_cores():
            return False
        time.sleep(0.002)
        return _others_take_cores()
    return False


def _others_take_cores() -> bool:
    import torch

    runnable = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    cores = os.sched_getaffinity(0)
    most = len(cores) - min(torch.get_num_threads(), len(cores)) + _runnable("self", cores)
    if runnable > most and len(cores) != os.cpu_count():  # others may run beside these cores
        runnable = _runnable("[0-9]*", cores)
    return runnable > most


def _runnable(processes: str, cores: set[int]) -> int:
    found = 0
    for task in Path("/proc").glob(f"{processes}/task/*/stat"):
        with suppress(OSError):  # it has ended
            state, *rest = task.read_text().rpartition(")")[2].split()
            found += state == "R" and int(rest[35]) in cores
    return found


def _is_compiling() -> bool:
    """Whether this thread is tracing or compiling: what runs meanwhile runs once, and not as it will."""
    import torch

    # torch.jit lacks it in its __all__
    return torch.jit.is_tracing() or torch._guards.TracingContext.try_get() is not None  # type: ignore[attr-defined]


def _text(error: FileError) -> str:
    return "\n".join(map(str, error.problems))

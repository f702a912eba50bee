"""``hccl_timeout`` with NCCL: such a wait happens on the device, and raises nothing in the program.

A thread finds it in torch's Flight Recorder, and reports it before NCCL's watchdog ends the process: the watchdog's message names the
rank that waits, not the one that did not come. Ranks leave word that they wait before their time is over, since they did not begin
together: when the first one's is, the others would not be known to wait.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from msctx.native import distributed

EARLY = 25.0
"""Seconds by which a rank leaves word before its time is over; half of the time where that is shorter."""
SETTLED = 5.0
"""Seconds for which a collective has to wait before anybody looks which one it is; a quarter of the time where that is shorter."""


class Collective(NamedTuple):
    """One that has not ended. *ranks*: those that have to come, if they are known; *place*: where the program is now."""

    name: str
    ranks: list[int] | None
    place: str


LONGER = 2.0
"""Seconds after the limit from which the timeout of a collective is its group's own, which the program has given it."""


@dataclass
class Calls:
    """What a :class:`Watch` does about a wait; all of it may ask the store of the process group."""

    leave_word: Callable[[], object]
    take_word_back: Callable[[], object]
    has_word: Callable[[], bool]
    """Whether another rank has left word."""
    report: Callable[[Collective], object]


@dataclass
class _Stall:
    """A process group in which no collective has ended since *began*; its :func:`_numbers` then."""

    numbers: tuple[int, int]
    began: float
    until: float
    """The moment of its report."""
    collective: Collective | None = None
    is_none: bool = False
    """Whether nothing waits, though numbers differ: those of single messages and of collectives are counted apart."""
    has_left_word: bool = False
    asked: float = 0.0
    is_reported: bool = False

    def is_over(self, numbers: tuple[int, int] | None) -> bool:
        return numbers is None or numbers[1] != self.numbers[1] or (self.is_none and numbers != self.numbers)


@dataclass
class Watch:
    """*limit*: the seconds that a collective may wait."""

    limit: float
    calls: Calls
    _stalls: dict[int, _Stall] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)

    def begin(self) -> None:
        threading.Thread(target=self._run, name="msctx stalls", daemon=True).start()

    def end(self) -> None:
        self._stop.set()  # without waiting for the thread: it may wait for the store

    def _run(self) -> None:
        pause = 0.0
        while not self._stop.wait(pause):
            now = time.monotonic()
            self.look(now)
            left = (stall.until - now for stall in self._stalls.values() if not stall.is_reported)
            pause = min([min(1.0, self.limit / 8), *(max(0.01, seconds) for seconds in left)])

    def look(self, now: float) -> None:
        """What is to be done *now*, by the clock of time.monotonic()."""
        found = {group: numbers for group, numbers in _numbers().items() if numbers[0] != numbers[1]}
        over = [self._stalls.pop(group) for group, stall in [*self._stalls.items()] if stall.is_over(found.get(group))]
        if any(stall.has_left_word for stall in over) and not any(stall.has_left_word for stall in self._stalls.values()):
            self.calls.take_word_back()
        for group, numbers in found.items():
            stall = self._stalls.setdefault(group, _Stall(numbers, now, now + self.limit))
            if not stall.is_none and not stall.is_reported:
                self._follow(group, stall, now)

    def _follow(self, group: int, stall: _Stall, now: float) -> None:
        if stall.collective is None:
            if now - stall.began < min(SETTLED, self.limit / 4):
                return
            if (waits := _waits(group, self.limit)) is None:
                stall.is_none = True
                return
            stall.collective, seconds = waits
            stall.until = min(stall.until, now + seconds)
        left = stall.until - now
        if not stall.has_left_word and (left <= min(EARLY, self.limit / 2) or self._asks(stall, now)):
            stall.has_left_word = True
            self.calls.leave_word()
        if left <= 0:
            stall.is_reported = True
            self.calls.report(stall.collective)

    def _asks(self, stall: _Stall, now: float) -> bool:
        if now - stall.asked < min(10.0, self.limit / 8):
            return False
        stall.asked = now
        return self.calls.has_word()


def _numbers() -> dict[int, tuple[int, int]]:
    """The last collective that each process group of NCCL has begun, and the last that has ended there."""
    found = distributed.nccl_record(entries=False).get("pg_status", {})
    keys = "last_enqueued_collective", "last_completed_collective"
    return {int(group): (int(numbers[keys[0]]), int(numbers[keys[1]])) for group, numbers in found.items()}


def _waits(group: int, limit: float) -> tuple[Collective, float] | None:
    """The first of a group that has not ended, and for how many seconds it may still wait."""
    launches: dict[tuple[int, int], list[Mapping[str, Any]]] = {}
    for one in distributed.nccl_record(entries=True).get("entries", ()):
        if one["pg_id"] == group:
            launches.setdefault((one["collective_seq_id"], one["p2p_seq_id"]), []).append(one)
    # Of what goes together, the last entry alone gets an end; what a CUDA graph has captured gets none
    ended = max((launch[-1]["record_id"] for launch in launches.values() if _has_ended(launch[-1])), default=-1)
    waiting = ((launch, _left(launch[-1], limit)) for launch in launches.values() if launch[-1]["record_id"] > ended)
    for launch, left in waiting:
        if left is not None:
            name = re.sub(r"^\w+:_?|\d.*$", "", launch[0]["profiling_name"]).strip()
            return Collective(name, _ranks(launch), _place(launch[0])), left
    return None


def _has_ended(one: Mapping[str, Any]) -> bool:
    return bool(one["retired"] or one["state"] == "completed")


def _left(one: Mapping[str, Any], limit: float) -> float | None:
    """Seconds; ``None``: the limit is not its own, or it would have been ended by now, so that it does not wait."""
    own, age = one["timeout_ms"] / 1e3, time.time() - one["time_created_ns"] / 1e9
    return None if own > limit + LONGER or age > own + LONGER else min(limit, own) - age


def _ranks(launch: Sequence[Mapping[str, Any]]) -> list[int] | None:
    """Those that have to come: of messages, the other ends."""
    from torch.distributed import distributed_c10d, get_process_group_ranks

    names = distributed_c10d._world.pg_names.items()
    try:
        ranks = next(get_process_group_ranks(group) for group, name in [*names] if name == launch[0]["process_group"][0])
    except (StopIteration, KeyError, ValueError):  # it was destroyed meanwhile
        return None
    others = {int(found[1]) for one in launch if (found := re.search(r"\d+(?:->|<-)(\d+)$", one["profiling_name"]))}
    return [ranks[other] for other in sorted(others)] or ranks


def _place(one: Mapping[str, Any]) -> str:
    """Where the thread is that has called it; the main thread, where that is none of Python's, as in a backward pass."""
    frames = sys._current_frames()
    main = threading.main_thread().ident
    frame = frames.get(int(one.get("thread_id", 0))) or frames.get(main or 0)
    inside = os.path.join("torch", "")
    while frame is not None and inside in frame.f_code.co_filename:
        frame = frame.f_back
    return "" if frame is None else f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"

"""Who holds which switch: per switch (for a thread-local one: per switch and thread) a stack of holds, the base's lowest."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from msctx import locks
from msctx.switches import Switch


@dataclass(slots=True)
class Record:
    """One switch as one holder found and wrote it."""

    switch: Switch
    put_back: Callable[[], None]
    """Brings back what was found, or what is held below by now."""
    want: Any
    """What it is to be: a value, or :data:`AS_FOUND`."""
    wrote: Any = None
    """What the switch read after the write."""
    who: threading.Thread = field(default_factory=threading.current_thread)
    """The thread that wrote it."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether a thread that still runs wrote it and nobody else can put it back for that thread."""
        return self.switch.scope != "process" and self.who is not threading.current_thread() and self.who.is_alive()


_numbers = itertools.count(1)


@dataclass(slots=True, eq=False)
class Hold:
    """What one scope (or the base) has written and will put back."""

    owner: str
    """Who writes, as messages name it: ``with-block at train.py:12``."""
    thread: int = field(default_factory=threading.get_ident)
    who: threading.Thread = field(default_factory=threading.current_thread)
    base: bool = False
    orphan: bool = False
    """Its thread is gone (this process was forked from another thread): nobody can conflict with it."""
    closed: bool = False
    """It has been left. What it still has could not be put back."""
    records: dict[str, Record] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)
    """What was written and is left as it is: not to be written again for another option's sake."""
    leaves: dict[str, Callable[[], None]] = field(default_factory=dict)
    """What was written and stays, to what is to be called once this is left."""
    late: dict[str, str] = field(default_factory=dict)
    """Switch → why it could not be written any more."""
    number: int = field(default_factory=lambda: next(_numbers))
    """Grows with each; the base is below all."""

    def __post_init__(self) -> None:
        if self.base:
            self.number = 0

    @property
    def is_stranded(self) -> bool:
        """Whether nobody will leave it any more. What a forked process inherits stays: it was born with that."""
        return not (self.base or self.orphan) and (self.closed or not self.who.is_alive())

    @property
    def is_here(self) -> bool:
        """Whether this thread entered it; a thread that has ended may have had the same number."""
        return self.who is threading.current_thread()


LOCK = locks.reentrant()
"""Of all that is read and written of what is held."""
HELD: dict[Any, list[Hold]] = {}
"""The entry of a switch → who holds it, the lowest first."""


def _after_fork() -> None:
    mine = threading.get_ident()
    for holds in HELD.values():
        for hold in holds:
            hold.orphan = hold.thread != mine


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def entry_of(switch: Switch, thread: int | None = None) -> Any:
    return (switch.name, thread or threading.get_ident()) if switch.scope == "thread" else switch.name


def all_holds() -> list[Hold]:
    """Who holds anything, the outermost first."""
    return sorted({hold for holds in HELD.values() for hold in holds}, key=lambda hold: hold.number)


def lowest_of(switch: Switch) -> Record | None:
    """The record of whoever wrote a switch first, of the base and of this thread's scopes."""
    for hold in HELD.get(entry_of(switch), ()):
        if (hold.base or hold.is_here) and switch.name in hold.records:
            return hold.records[switch.name]
    return None


def merge_stranded(holds: list[Hold], name: str) -> None:
    """Of neighbours on top that nobody will leave, one is enough: it puts back what the lowest found."""
    while len(holds) > 1 and holds[-1].is_stranded and holds[-2].is_stranded:
        holds[-1].records[name].put_back = holds.pop(-2).records.pop(name).put_back


def insert(holds: list[Hold], hold: Hold) -> None:
    """Above those who came before."""
    place = len(holds)
    while place and holds[place - 1].number > hold.number:
        place -= 1
    holds.insert(place, hold)


def drop(switch: Switch, hold: Hold) -> None:
    """Hold a switch no longer."""
    record = hold.records.pop(switch.name, None)
    key = entry_of(switch, record.who.ident if record else hold.thread)
    holds = HELD.get(key, [])
    if hold in holds:  # not where something came between
        holds.remove(hold)
    if not holds and key in HELD:
        del HELD[key]


def hold_only(switch: Switch, holds: list[Hold]) -> None:
    """Have a switch held by these."""
    HELD[entry_of(switch)] = holds
    if not holds:
        del HELD[entry_of(switch)]

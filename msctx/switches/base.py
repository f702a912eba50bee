"""What a switch is: one global of torch, a back end, Python or the system, that can be read, written and put back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from typing import Any


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """One row of the table of globals.

    Attributes:
        name: dotted; the first word is its owner (``torch``, ``env``, ``python``, ``rng``).
        read: the value in effect now, as plain data.
        write: sets it; ``None`` for a global that is only observed.
        scope: ``"process"``; ``"thread"``: each thread has its own; ``"inherited"``: a thread's own, and new threads start
            with the one written last.
        restore: ``"exact"``; ``"closing"``: the same, but only when the scope that wrote it closes, not for one inside that has no
            use for it; ``"never"``: it cannot be undone; ``"kept"``: it is left as written on purpose.
        only_before: for a switch that takes effect only early: until when.
        lasts: for one that cannot be undone for another reason: why.
        family: a name common to switches that share some state, so that what a write leaves depends on what it finds: before one
            of them is changed, all go back to what was found first.
        save, load: for a switch whose value does not hold its whole state: take the state, put it back.
        satisfied: whether what is in effect already serves a value, so that nothing need be written.
        blocked: why a value cannot be written now (``""``: it can). Raises ``SwitchError`` where writing must not be skipped.
            ``None``: nothing ever is in the way.
        available: whether the global exists in this process.
        prepare: brings what a write needs and may take long (the native core is built); what fails is reported by ``devices.facts()``
            from then on.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], None] | None = None
    scope: str = "process"
    restore: str = "exact"
    only_before: str = ""
    lasts: str = ""
    family: str = ""
    save: Callable[[], Any] | None = None
    load: Callable[[Any], None] | None = None
    satisfied: Callable[[Any], bool] | None = None
    blocked: Callable[[Any], str] | None = None
    available: Callable[[], bool] = _always
    prepare: Callable[[], object] | None = None

    def is_satisfied(self, value: Any) -> bool:
        return self.satisfied(value) if self.satisfied else self.read() == value

    def set(self, value: Any) -> None:
        assert self.write is not None, f"{self.name} is only observed"
        self.write(value)

    def take(self) -> Any:
        """The whole state, for :meth:`put_back`."""
        return (self.save or self.read)()

    def put_back(self, state: Any) -> None:
        if self.load is not None:
            self.load(state)
        elif self.read() != state:
            self.set(state)


def reading(place: str, unwritten: Any = None, *of: Any) -> Callable[[], Any]:
    """``module:function``, called with *of*, to read or save a switch; *unwritten* while the module is not loaded."""
    module, _, function = place.partition(":")
    return lambda: attrgetter(function)(import_module(module))(*of) if module in sys.modules else unwritten


def writing(place: str, unwritten: Any = None, *of: Any) -> Callable[[Any], None]:
    """``module:function`` to write or load a switch: the first value other than *unwritten* loads the module."""
    module, _, function = place.partition(":")

    def write(value: Any) -> None:
        if module in sys.modules or value is not unwritten:
            attrgetter(function)(import_module(module))(*of, value)

    return write

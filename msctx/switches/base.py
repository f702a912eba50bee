"""What a switch is: one global of torch, a back end, Python or the system, that can be read, written and put back."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass
from importlib import import_module
from operator import attrgetter
from typing import Any

TWICE = ("between", "together")
EXACT = ("exact", *TWICE)
RESTORED, UNDOABLE = (*EXACT, "closing"), (*EXACT, "closing", "kept")


class LateError(Exception):
    """A write came too late; the text says for what."""


@dataclass(frozen=True, slots=True)
class Switch:
    """One row of the table of globals.

    Attributes:
        name: dotted; the first word is its owner (``torch``, ``env``, ``python``, ``rng``).
        read: the value in effect now: plain data, tuples or frozen dataclasses.
        write: sets it; ``None`` for a global that is only observed.
        scope: ``"process"``; ``"thread"``: each thread has its own; ``"inherited"``: a thread's own, and new threads start
            with the one written last.
        restore: ``"exact"``; ``"between"``: exactly, and between two values, too, as the result of a write depends on what it
            finds; ``"together"``: so are all of this kind when one of them gets another value, as they share a state.
            ``"closing"``: only when the scope that wrote it closes, not for an inner scope without the option; ``"kept"``: stays
            as written on purpose. Any other text: the write cannot be undone, for this reason.
        state: functions that take and restore the whole state, for a switch whose value does not hold it.
        satisfied: whether what is in effect already serves a value, so that nothing need be written.
        blocked: why a value cannot be written now (``""``: it can). Raises ``SwitchError`` where writing must not be skipped.
        load: brings the library that a value needs, which may have to be built.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object] | None = None
    _: KW_ONLY
    scope: str = "process"
    restore: str = "exact"
    state: tuple[Callable[[], Any], Callable[[Any], object]] | None = None
    satisfied: Callable[[Any], bool] | None = None
    blocked: Callable[[Any], str] | None = None
    load: Callable[[], object] | None = None

    @property
    def lasts(self) -> str:
        """Why a write cannot be undone; ``""``: it can, or stays on purpose."""
        return "" if self.restore in UNDOABLE else self.restore

    def is_satisfied(self, value: Any, *just_read: Any) -> bool:
        return self.satisfied(value) if self.satisfied else bool((just_read[0] if just_read else self.read()) == value)

    def set(self, value: Any) -> None:
        assert self.write is not None, f"{self.name} is only observed"
        self.write(value)

    def take(self) -> Any:
        """The whole state, for :meth:`put_back`."""
        return self.state[0]() if self.state else self.read()

    def put_back(self, state: Any) -> None:
        if self.state is not None:
            self.state[1](state)
        elif self.read() != state:
            self.set(state)


def of(name: str, there: Any, **more: Any) -> Switch:
    """A switch by the methods of *there*: ``read``, ``write`` and, if there are any, ``save``, ``load``, ``holds``, ``blocked``."""
    if hasattr(there, "save"):
        more = {"state": (there.save, there.load)} | more
    for field, method in (("satisfied", "holds"), ("blocked", "blocked")):
        if hasattr(there, method):
            more = {field: getattr(there, method)} | more
    return Switch(name, there.read, there.write, **more)


def variable(name: str, **more: Any) -> Switch:
    """An environment variable, whose name is the last word of the switch's."""
    key = name.rpartition(".")[2]

    def write(value: str | None) -> None:
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value

    return Switch(name, lambda: os.environ.get(key), write, **more)


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


def slot(name: str, place: str, *of: Any, **more: Any) -> Switch:
    """*place*: ``module:object`` of a :class:`msctx.observers.slots_and_files.Slot`, whose kind is made of *of* and the value."""
    state = reading(f"{place}.save"), writing(f"{place}.load")
    return Switch(name, reading(f"{place}.read"), writing(f"{place}.write", None, *of), state=state, **more)


# --- paths that are opened later lead where they did when they were set, whatever directory the program is in by then ---------

OF_THE_ENGINE = frozenset(
    {"ge.debugDir", "ge.op_compiler_cache_dir", "ge.exec.dumpPath", "ge.exec.opDebugConfig", "ge.fusionSwitchFile"}
)
OF_THE_TUNER = frozenset({"path", "file"})
Texts = Mapping[str, Any] | None


def place(path: str | None) -> str | None:
    """Where it leads now."""
    return path and os.path.abspath(os.path.expandvars(os.path.expanduser(path)))


class Placed:
    """Texts by their keys, of which some are *paths*: one that is in force stays, also where an inner scope sets other keys."""

    def __init__(self, paths: Collection[str]) -> None:
        self._paths = paths
        self.given: Texts = None
        self.now: Texts = None

    def placed(self, texts: Texts) -> Texts:
        return texts and {key: self._placed(key, text) for key, text in texts.items()}

    def _placed(self, key: str, text: Any) -> Any:
        if self.given and self.now and self.given.get(key) == text:
            return self.now[key]
        return place(text) if key in self._paths else text

    def read(self) -> Any:
        return self.now and dict(self.now)

    def holds(self, texts: Any) -> bool:
        return self.placed(texts) == self.now

    def write(self, texts: Any) -> None:
        self.given, self.now = texts, self.placed(texts)

    def save(self) -> Any:
        return self.given, self.now

    def load(self, found: Any) -> None:
        self.given, self.now = found

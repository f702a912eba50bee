"""Puts the handlers of signals off while what they may interrupt must not be left half done."""

from __future__ import annotations

import _signal  # signal's own functions look each number up in an enumeration: for all of them that takes longer than the rest
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from opcode import opmap
from typing import Any, ClassVar, TypeVar

from msctx import locks

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")


def begins_with_try(function: F) -> F:
    """For a function whose first statement is a ``try``: what the handler of a signal raises is caught from its first instruction on.

    Python 3.11 and later look for signals at that instruction, RESUME, before the ``try``; here they do so no more, as where a
    generator goes on in a ``yield from``. Python 3.10 never does in front of a ``try``.
    """
    code = function.__code__
    if (resume := opmap.get("RESUME")) is not None:
        start, inside = (bytes((resume, context)) for context in (0, 2))
        function.__code__ = code.replace(co_code=code.co_code.replace(start, inside, 1))
    return function


def _is_deep(limit: int) -> bool:
    """Whether much of a recursion limit may be used: up to Python 3.11, calls in C that lie between frames count, too."""
    try:
        sys._getframe(limit // 8)
    except ValueError:
        return False
    return True


class Room:
    """Room near the recursion limit, which belongs to the process, for the calls of what must not be left half done."""

    MORE = 400
    _lock = locks.reentrant()
    _inside: ClassVar[set[int]] = set()
    """The threads that need it."""
    _wanted: int | None = None
    """The limit that is to be in force without it."""
    _raised = 0
    """The limit that was set for it."""

    @classmethod
    def call(cls, function: Callable[..., R], *args: Any) -> R:
        """Call *function*, under a higher limit if much of it is used."""
        thread, found = threading.get_ident(), sys.getrecursionlimit()
        needs_it = _is_deep(found) and thread not in cls._inside
        try:
            if needs_it:
                with cls._lock:  # there may be no room for a call of Python's
                    found = sys.getrecursionlimit()
                    if cls._wanted is None or found != cls._raised:
                        cls._wanted = found
                    cls._raised = found + cls.MORE
                    sys.setrecursionlimit(cls._raised)
                    cls._inside.add(thread)
            return function(*args)
        finally:
            if needs_it or cls._wanted is not None:
                cls._leave(thread, needs_it, found)

    @classmethod
    def enter(cls, function: Callable[..., R], *args: Any) -> R:
        """As :meth:`call`; beyond the limit that is to be put back it raises RecursionError, so that an endless recursion ends."""
        with cls._lock:
            if cls._wanted is not None and not cls._inside:
                sys.setrecursionlimit(cls.limit())
                cls._wanted = None
        return cls.call(function, *args)

    @classmethod
    def was_made(cls, found: int) -> None:
        """The caller has raised the limit, for there was no room to call anybody; it is put back after the next call."""
        with cls._lock:
            if cls._wanted is None or found != cls._raised:
                cls._wanted = found
            cls._raised = found + cls.MORE

    @classmethod
    def limit(cls) -> int:
        """The limit in force, without what was added."""
        found = sys.getrecursionlimit()
        return cls._wanted if cls._wanted is not None and found == cls._raised else found

    @classmethod
    def write(cls, limit: int) -> None:
        """Raise the limit, which may be used up; *limit* is in force afterwards."""
        with cls._lock:
            cls._wanted, cls._raised = limit, max(limit, sys.getrecursionlimit()) + cls.MORE
            sys.setrecursionlimit(cls._raised)

    @classmethod
    def set_limit(cls, limit: int) -> None:
        """As ``sys.setrecursionlimit``; where there is or must be more room, the limit is set when that is over."""
        with cls._lock:
            if cls._inside or _is_deep(limit):
                cls.write(limit)
            else:
                sys.setrecursionlimit(limit)

    @classmethod
    def _leave(cls, thread: int, needed_it: bool, found: int) -> None:
        """Python refuses a limit that is used up: then as near to it as may be, and whoever is next puts it back."""
        with cls._lock:
            if needed_it:
                cls._inside.discard(thread)
            if cls._inside or cls._wanted is None:
                return
            wanted = cls.limit()  # or what other code has set
            for limit in (wanted, found, found + 8):  # after it there is no room to call anybody
                try:
                    sys.setrecursionlimit(limit)
                except RecursionError:
                    continue
                cls._raised, cls._wanted = limit, None if limit == wanted else wanted
                return


def _after_fork() -> None:
    Room._inside.intersection_update({threading.get_ident()})


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Waiting(list[Any]):
    """Stands in for the handlers of signals inside its with-block: keeps what they are to be called with until the block is done."""

    def __init__(self) -> None:
        super().__init__()
        self.handlers: dict[int, Any] = {}
        self.is_done = False

    def __call__(self, *call: Any) -> None:
        self.append(call)
        if self.is_done:  # a signal came while the handlers were put back
            self.deliver()

    @begins_with_try
    def __enter__(self) -> Callable[[], None]:
        global waiting_now
        try:
            waiting_now = self
            self.install()
            return self.deliver
        except BaseException:  # a signal came before its handler was replaced
            self.__exit__()
            raise

    @begins_with_try
    def __exit__(self, *_: object) -> None:
        try:
            self.remove()
        finally:
            if waiting_now is self:  # something was raised in front of that call
                self.remove()
            self.deliver()

    @begins_with_try
    def deliver(self) -> None:
        """Call the handlers; one that raises does not keep the others from being called."""
        try:
            if self:
                number, frame = self[0]
                del self[0]  # not pop(): after a call, a handler may raise
                self.handlers[number](number, frame)
        finally:
            if self:
                self.deliver()

    def install(self) -> None:
        global _seen
        found = [*map(_signal.getsignal, _SIGNALS)]
        if found != _seen[0]:  # seldom: programs set their handlers once
            _seen = found, {number: handler for number, handler in zip(_SIGNALS, found, strict=True) if callable(handler)}
        for number, handler in _seen[1].items():
            self.handlers[number] = handler.handlers[number] if isinstance(handler, _Waiting) else handler
            _signal.signal(number, self)

    @begins_with_try
    def remove(self) -> None:  # type: ignore[override]  # it is no list to anybody else
        """Put the handlers back: all of them, even if one that is back raises already. One that was set meanwhile stays."""
        global waiting_now
        try:
            self.is_done = True
            for number, handler in self.handlers.items():
                if _signal.getsignal(number) is self:
                    _signal.signal(number, handler)
            waiting_now = None
        except BaseException:
            self.remove()
            raise


_SIGNALS = tuple(int(number) for number in signal.valid_signals())
_seen: tuple[list[Any], dict[int, Any]] = ([], {})
"""What the signals' handlers were when last looked at, and those of them that are functions of Python's."""
_not_now: AbstractContextManager[Callable[[], None]] = nullcontext(lambda: None)
waiting_now: _Waiting | None = None


def uninterrupted() -> AbstractContextManager[Callable[[], None]]:
    """Put the handlers of signals off until the with-block is done: any of them may raise, as that of Ctrl-C and those of time limits
    do, and that must not fall between a write and its entry in the ledger.

    Gives a function that lets those that are waiting through at once: a block that can still undo its work calls it last. Inside
    another such block it does nothing: the outer one decides.
    """
    is_main = threading.current_thread() is threading.main_thread()
    return _Waiting() if is_main and waiting_now is None else _not_now

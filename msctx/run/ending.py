"""SIGTERM, as schedulers send it before they kill a job, ends a run or a sweep as Ctrl-C does; then the process ends by it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from msctx.errors import EntryFailed, MsctxError


class Terminated(BaseException):
    """SIGTERM came. Not a KeyboardInterrupt, which training loops take for a wish to end well."""


class _State:
    came: float | None = None
    process: int | None = None  # that handles the signal
    last_word: Callable[[MsctxError], object] = staticmethod(lambda why: None)


SECONDS = 5.0
"""That the entry has to end by itself; a signal after them raises again."""


def _terminate(number: int, frame: Any) -> None:
    if os.getpid() != _State.process:  # forked a moment ago; what is raised in the hooks of a fork is lost
        _forget_in_child()
        signal.raise_signal(number)
    now = time.monotonic()
    if _State.came is None or now - _State.came > SECONDS:
        if _State.came is None:
            leave_word(EntryFailed("signal 15 (SIGTERM) ended it"))
        _State.came = now
        raise Terminated


def last_word(leave: Callable[[MsctxError], object]) -> None:
    """From here on, *leave* is called with why a run fails or ends by SIGTERM: as soon as that is known."""
    _State.last_word = staticmethod(leave)


def leave_word(why: MsctxError) -> None:
    _State.last_word(why)


def _ignore(number: int, frame: Any) -> None:
    """Not SIG_IGN, which programs that are started would inherit."""


def _forget_in_child() -> None:
    """A process that is forked meanwhile ends by the signal at once."""
    if signal.getsignal(signal.SIGTERM) in (_terminate, _ignore):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM raises :class:`Terminated`, unless somebody handles it; at the end, the process ends by the signal in any case.

    The handlers of SIGTERM and Ctrl-C are then as they were.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    if before[signal.SIGTERM] == signal.SIG_DFL:
        _State.process = os.getpid()
        signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    except Terminated:
        pass
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
        if _State.came is not None:
            _State.came = None
            signal.raise_signal(signal.SIGTERM)
            raise SystemExit(128 + signal.SIGTERM)  # the first process of a container does not end by it


def is_terminated() -> bool:
    """Whether SIGTERM came, though other code may have caught what it raised."""
    return _State.came is not None


def deafen() -> None:
    """From here on, neither signal keeps what is left from being written."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, _ignore)

"""SIGTERM, as schedulers send it before they kill a job, ends a run or a sweep as Ctrl-C does; then the process ends by it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from msctx.signals import uninterrupted


class Terminated(BaseException):
    """SIGTERM came. Not a KeyboardInterrupt, which training loops take for a wish to end well."""


class _State:
    process: int | None = None  # that handles the signal
    has_come = False
    is_only_noted = False


def _terminate(number: int, frame: Any) -> None:
    if os.getpid() != _State.process:  # a worker that was forked ends by the signal at once
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
    raises = not (_State.has_come or _State.is_only_noted)
    _State.has_come = True
    if raises:
        raise Terminated


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM raises :class:`Terminated`, once, unless somebody handles it; at the end the process ends by the signal."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    _State.process, _State.has_come = os.getpid(), False
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    except Terminated:
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if _State.has_come:
            _State.has_come = False
            signal.raise_signal(signal.SIGTERM)
            raise SystemExit(128 + signal.SIGTERM)  # the first process of a container does not end by it


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ctrl-C waits for the end of the block, SIGTERM for that of :func:`terminable`."""
    with uninterrupted():
        _State.is_only_noted = True
        try:
            yield
        finally:
            _State.is_only_noted = False


def is_terminated() -> bool:
    """Whether SIGTERM came, though other code may have caught what it raised."""
    return _State.has_come

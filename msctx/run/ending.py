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


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM raises :class:`Terminated`, once, unless somebody handles it; at the end the process ends by the signal."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    process, came = os.getpid(), []

    def terminate(number: int, frame: Any) -> None:
        if os.getpid() != process:  # a worker that was forked ends by the signal at once
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        came.append(number)
        if len(came) == 1:
            raise Terminated

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except Terminated:
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if came:
            signal.raise_signal(signal.SIGTERM)
            raise SystemExit(128 + signal.SIGTERM)  # the first process of a container does not end by it


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait for the end of the block."""
    unterminated = uninterrupted()
    unterminated.number = signal.SIGTERM
    with uninterrupted(), unterminated:
        yield

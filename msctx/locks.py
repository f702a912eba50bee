"""Locks that a forked child finds free: a thread that held one at the fork does not exist there, and would never release it."""

from __future__ import annotations

import logging as logging  # a fork takes the locks in the reverse order of their modules: ours before that of logging
import os
import threading
import weakref
from typing import Any, TypeVar

Lock = TypeVar("Lock")

_made: weakref.WeakSet[Any] = weakref.WeakSet()


def plain() -> threading.Lock:
    return _known(threading.Lock())


def reentrant() -> threading.RLock:
    return _known(threading.RLock())


def is_ours(lock: threading.RLock) -> bool:
    """Whether this thread holds it. Python has no public way to ask before 3.14."""
    return bool(lock._is_owned())  # type: ignore[attr-defined]


def _known(lock: Lock) -> Lock:
    _made.add(lock)
    return lock


def _after_fork() -> None:
    for lock in _made:
        if not (hasattr(lock, "_is_owned") and is_ours(lock)):  # by the thread that forked, which goes on
            lock._at_fork_reinit()  # as the standard library does with its own


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

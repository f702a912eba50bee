"""Locks that a forked child finds free: a thread that held one at the fork does not exist there, and would never release it.

Python's own locks of modules are none of these: a module that another thread was importing at the fork can never be imported in the
child. And a child that is forked while a program is being started keeps the pipe open by which its parent waits for that. So a fork
waits for both: for our own modules, and for those of others that we import late.
"""

from __future__ import annotations

import importlib
import logging as logging  # a fork takes the locks in the reverse order of their modules: ours before that of logging
import os
import threading
import time
import weakref
from functools import cache
from importlib import import_module
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


no_fork = threading.RLock()
"""A fork waits for it. Held around imports and the start of programs, and around nothing that takes a lock of ours."""


@cache
def imported(*modules: str) -> None:
    """Import what functions need that are called often."""
    with no_fork:
        for module in modules:
            import_module(module)


MOST_SECONDS = 10.0
"""That a fork waits for: the thread that imports may itself wait for the one that forks."""


def _wait() -> None:
    """Until no other thread imports a module of ours, or holds :data:`no_fork`, which this thread then does."""
    end = time.monotonic() + MOST_SECONDS
    no_fork.acquire()
    while _is_importing() and time.monotonic() < end:
        no_fork.release()
        try:
            time.sleep(1e-3)
        finally:  # a signal's handler may raise
            no_fork.acquire()


def _is_importing() -> bool:
    """Python has no public way to ask."""
    locks: dict[str, Any] = getattr(importlib._bootstrap, "_module_locks", {})
    ours = [lock() for name, lock in [*locks.items()] if name.partition(".")[0] == "msctx"]
    return any(getattr(lock, "owner", None) not in (None, threading.get_ident()) for lock in ours)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait, after_in_parent=no_fork.release, after_in_child=no_fork.release)
    os.register_at_fork(after_in_child=_after_fork)

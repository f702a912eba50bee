"""Tells which ranges of ``record_function`` are open, for profiles that begin and end while a program runs.

When a range ends, torch writes into the memory of the profile in which it began, and takes the profile that runs by then for it:
where that is another one, the process crashes. So a profile begins only where no range of an earlier one is open.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import _C
from torch.autograd.profiler import record_function

_open: set[int] = set()
"""The ids of those that began inside a profile."""
_closed: list[Callable[[], object]] = []
_wrapped: dict[str, tuple[Any, Any]] = {}


def are_open() -> bool:
    return bool(_open)


def watch(closed: Callable[[], object]) -> None:
    """Know of ranges from now on; *closed* is called whenever the last one has ended. torch has no hook for that."""
    _closed.append(closed)
    if not _wrapped:
        for name, ours in (("__enter__", _entering), ("__exit__", _leaving)):
            found = vars(record_function)[name]
            _wrapped[name] = found, ours(found)
            setattr(record_function, name, _wrapped[name][1])


def forget(closed: Callable[[], object]) -> None:
    """What is open yet stays known until it has ended."""
    if closed in _closed:
        _closed.remove(closed)
    _tidy()


def _tidy() -> None:
    if _closed or _open:
        return
    while _wrapped:
        name, (found, ours) = _wrapped.popitem()
        if vars(record_function)[name] is ours:  # else somebody has wrapped it meanwhile
            setattr(record_function, name, found)


def _entering(enter: Any) -> Any:
    @wraps(enter)
    def entered(self: record_function) -> Any:
        result = enter(self)
        if _C._autograd._profiler_enabled():
            _open.add(id(self))
        return result

    return entered


def _leaving(leave: Any) -> Any:
    @wraps(leave)
    def left(self: record_function, *args: Any) -> Any:
        result = leave(self, *args)
        _open.discard(id(self))
        if not _open:
            for closed in [*_closed]:
                closed()
            _tidy()
        return result

    return left

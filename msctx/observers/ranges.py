"""Tells which ranges of ``record_function`` are open, and when a profiler begins: torch has hooks for neither.

When a range ends, torch writes into the memory of the profile in which it began, and takes the profile that runs by then for it:
where that is another one, the process crashes. So a profile may begin only where no range of an earlier one is open.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol

from torch import _C
from torch.autograd.profiler import profile, record_function

from msctx.dynamo import outside_dynamo


class Listener(Protocol):
    def all_closed(self) -> None:
        """The last range that was open has ended."""

    def another_begins(self) -> None:
        """A profiler of torch is about to begin."""


_open: set[int] = set()
"""The ids of those that began inside a profile."""
_listeners: list[Listener] = []
_wrapped: list[tuple[Any, str, Any, Any]] = []


def are_open() -> bool:
    return bool(_open)


def listen(listener: Listener) -> None:
    _listeners.append(listener)
    if not _wrapped:
        for owner, name, wrap in _METHODS:
            found = vars(owner)[name]
            _wrapped.append((owner, name, found, wrap(found)))
            setattr(owner, name, _wrapped[-1][-1])


def forget(listener: Listener) -> None:
    """What is open yet stays known until it has ended."""
    _listeners.remove(listener)
    _tidy()


def _tidy() -> None:
    while _wrapped and not _listeners and not _open:
        owner, name, found, ours = _wrapped.pop()
        if vars(owner)[name] is ours:  # else somebody has wrapped it meanwhile
            setattr(owner, name, found)


def _entering(enter: Any) -> Callable[..., Any]:
    @outside_dynamo
    @wraps(enter)
    def entered(self: record_function) -> Any:
        result = enter(self)
        if _C._autograd._profiler_enabled():
            _open.add(id(self))
        return result

    return entered


def _leaving(leave: Any) -> Callable[..., Any]:
    @outside_dynamo
    @wraps(leave)
    def left(self: record_function, *args: Any) -> Any:
        result = leave(self, *args)
        _open.discard(id(self))
        if not _open:
            for listener in [*_listeners]:
                listener.all_closed()
            _tidy()
        return result

    return left


def _preparing(prepare: Any) -> Callable[..., Any]:
    @outside_dynamo
    @wraps(prepare)
    def prepared(self: profile) -> Any:
        for listener in [*_listeners]:
            listener.another_begins()
        return prepare(self)

    return prepared


_METHODS = (
    (record_function, "__enter__", _entering),
    (record_function, "__exit__", _leaving),
    (profile, "_prepare_trace", _preparing),
)

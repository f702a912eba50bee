"""Counts the steps of training while an observer is on.

The call of ``optimizer.step()`` ends a step. Where several optimizers step, one of them leads: the first, until another one steps
twice between two of its steps, or it is gone. So one iteration is one step, however many optimizers it has.

``msctx.step()`` ends a step, too. From its first call on it alone does, for as long as anything counts: for inference, for
accumulated gradients, for optimizers that are compiled. It may follow ``optimizer.step()``; the two end one step.

A step that a GradScaler skips does not end: no parameter has changed, and its work belongs to the step that goes on.

The count belongs to the process, since backward passes run in threads of their own. It begins at 0 with the first observer; one that
was off in an inner scope goes on with its count.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from msctx.outside_dynamo import outside_dynamo

if TYPE_CHECKING:
    from torch.optim import Optimizer

Listener = Callable[[int], object]
"""Called with the index of a step that ends, in the thread that ends it. It must not raise."""


class _Count:
    """What one span of counting knows."""

    def __init__(self) -> None:
        self.index = 0
        self.by_program = False
        """Whether ``msctx.step()`` ends the steps."""
        self.leader: Callable[[], Optimizer | None] = lambda: None
        self.others: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        """Those that have stepped since the leader did."""


_lock = threading.Lock()
_count = _Count()
_listeners: list[Listener] = []
_hooks: list[Any] = []
"""Of torch's optimizers, while anything counts."""


def current() -> int:
    """The index of the step that runs, from 0 on; 0 while nothing counts."""
    return _count.index


def span() -> object:
    """Of what :func:`current` counts: another one each time that somebody begins to count where nobody did."""
    return _count


def advance() -> None:
    """End the step that runs: what ``msctx.step()`` does. Without an observer it does nothing."""
    with _lock:
        if not _listeners:
            return
        is_ended = not _count.by_program and _count.index > 0  # by the optimizer of the same iteration
        _count.by_program = True
    if not is_ended:
        _end()


@contextmanager
def counting(ended: Listener = lambda step: None, going_on: object = None) -> Iterator[None]:
    """Count steps inside; *ended* is called with the index of each that ends. *going_on*: the :func:`span` to continue, where nobody
    counts."""
    global _count

    with _lock:
        if not _hooks:
            _count = going_on if isinstance(going_on, _Count) else _Count()
            _hooks.append(register_optimizer_step_post_hook(_after_step))
        _listeners.append(ended)
    try:
        yield
    finally:
        with _lock:
            _listeners.remove(ended)
            if not _listeners:
                _hooks.pop().remove()
                _count = _Count()


def _end() -> None:
    with _lock:
        step, listeners = _count.index, [*_listeners]
        _count.index += 1
    for ended in listeners:
        ended(step)


@outside_dynamo
def _after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    with _lock:
        if _count.by_program or not _leads(optimizer):
            return
    _end()


def _leads(optimizer: Optimizer) -> bool:
    leader = _count.leader()
    if leader is not None and leader is not optimizer and optimizer not in _count.others:
        _count.others.add(optimizer)
        return False
    _count.others.clear()
    _count.leader = weakref.ref(optimizer)
    return True

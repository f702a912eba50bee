"""The scopes: which contexts are open, in each thread the innermost last."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from msctx import locks, notices
from msctx.context.base import BASE
from msctx.graph import report
from msctx.imports import when_imported
from msctx.native import choices, conv_policy, precision_switch, precisions
from msctx.options import Layer, Settings
from msctx.plan import Plan
from msctx.signals import uninterrupted

if TYPE_CHECKING:
    from msctx.context.ledger import Hold


T = TypeVar("T")


class Ran:
    """How often a session has run a function in this process."""

    count = 0


class Scope:
    """One entry of one context (a :class:`msctx.Context`, whose file is above this one) by one thread."""

    def __init__(self, context: Any, layers: tuple[Layer, ...], settings: Settings, plan: Plan, hold: Hold | None) -> None:
        self.context, self.layers, self.hold = context, layers, hold
        self.settings, self.plan = settings, plan
        self.who = threading.current_thread()
        self.outer = stack.scopes[-1] if stack.scopes else None
        self._ran = Ran.count
        self.open = True
        self.leaving = False  # __exit__ has come; if an inner scope was open, it closes with that one
        self.visitors: set[Scope] = set()  # of bound functions that run in other threads under this scope
        begin(context)

    @property
    def around(self) -> tuple[Scope, ...]:
        """The scopes around this one, the outermost first, and itself."""
        found: list[Scope] = []
        scope: Scope | None = self
        while scope is not None:
            found.insert(0, scope)
            scope = scope.outer
        return tuple(found)

    @property
    def has_run(self) -> bool:
        """Whether a session has run a function since this was entered."""
        return Ran.count > self._ran

    def end(self) -> list[str]:
        """Counts nothing any more; returns the rules that nothing has matched."""
        self.open = False
        BASE.opened.discard(self)
        return end(self.context)


class _Stack(threading.local):
    def __init__(self) -> None:
        self.scopes: list[Scope] = []


stack = _Stack()
if hasattr(os, "register_at_fork"):  # what a forked process inherits from other threads stays
    os.register_at_fork(after_in_child=lambda: BASE.opened.intersection_update(stack.scopes))


# --- what is counted while contexts are open --------------------------------------------------------------------------

_counted: dict[Any, int] = {}
"""The contexts that are open, in the order of opening → how many scopes they have."""
_dynamo: list[str] = []
_SOURCES: dict[Any, Collection[Any]] = {
    choices.Tally: conv_policy.IN_FORCE,
    precisions.Tally: precision_switch.numbers,
    report.Tally: _dynamo,
}
"""Kind of counter → what holds something while there may be something to count: a context has none of a kind before."""
_lock = locks.reentrant()


def begin(context: Any) -> None:
    """Count, from now on or once there is something to count, until :func:`end` was called as often."""
    with uninterrupted(), _lock:
        _counted[context] = _counted.get(context, 0) + 1
        try:
            for kind, source in _SOURCES.items():
                if source:
                    _count(kind, context)
        except BaseException:
            end(context)
            raise


def end(context: Any) -> list[str]:
    """Returns what is to be reported."""
    with uninterrupted(), _lock:
        _counted[context] -= 1
        if _counted[context]:
            return []
        del _counted[context]
        return [text for counter in context.counters.values() for text in counter.end()]


def counted(context: Any, kind: Any, read: Callable[[Any], T], nothing: T) -> T:
    """What a counter of a context has counted."""
    with uninterrupted(), _lock:
        return read(context.counters[kind]) if kind in context.counters else nothing


def _count(kind: Any, context: Any) -> None:
    if kind not in context.counters:
        context.counters[kind] = kind(context)
    context.counters[kind].begin()


def _note(kind: Any) -> None:
    """There is more to count."""
    with uninterrupted(), _lock:
        for context in _counted:
            _count(kind, context)


def _note_dynamo() -> None:
    _dynamo.append("is loaded")
    _note(report.Tally)


conv_policy.COMING.append(partial(_note, choices.Tally))
precision_switch.COMING.append(partial(_note, precisions.Tally))
when_imported("torch._dynamo", _note_dynamo)


# --- what is in force -------------------------------------------------------------------------------------------------


def in_force() -> tuple[tuple[Layer, ...], Plan]:
    """The layers of the scopes of this thread (without the base) and the plan in force."""
    if stack.scopes:
        return stack.scopes[-1].layers, stack.scopes[-1].plan
    return (), BASE.plan


def settings_in_force() -> Settings:
    return stack.scopes[-1].settings if stack.scopes else BASE.settings


def end_stranded() -> None:
    """Those of threads that have ended inside them: nobody will leave them. What they hold is put back by ledger.settle."""
    with BASE.lock:
        stranded = [scope for scope in [*BASE.opened] if not scope.who.is_alive()]
        for scope in stranded:
            scope.end()
            scope.context._watched.close()
    for scope in stranded:
        text = (
            f"the {scope.context.origin} was never left: the thread {scope.who.name} has ended inside it. Its options stay in "
        )
        notices.warn(f"{text}force until another context sets them, or reset_context() puts them back")

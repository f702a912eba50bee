"""The scopes: which contexts are open, in each thread the innermost last."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from msctx import locks, notices
from msctx.context.base import BASE
from msctx.imports import when_imported
from msctx.native import core
from msctx.options import Layer, Settings
from msctx.plan import Plan

if TYPE_CHECKING:
    from msctx.context.ledger import Hold


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
        with _lock:
            if is_early := core.loaded() is None and DYNAMO not in sys.modules:
                _early[self] = None
        if not is_early:
            self.count()

    @property
    def around(self) -> tuple[Scope, ...]:
        """The scopes around this one, the outermost first, and itself."""
        found: list[Scope] = []
        scope: Scope | None = self
        while scope is not None:
            found.insert(0, scope)
            scope = scope.outer
        return tuple(found)

    def count(self) -> None:
        """Count what is computed and compiled from now on."""
        begun: list[Any] = []
        try:
            for counter in self.context.counters:
                counter.open()
                begun.append(counter)
        except BaseException:
            for counter in begun:
                counter.close()
            raise

    @property
    def has_run(self) -> bool:
        """Whether a session has run a function since this was entered."""
        return Ran.count > self._ran

    def end(self) -> list[str]:
        """Counts nothing any more; returns the rules that nothing has matched."""
        self.open = False
        BASE.opened.discard(self)
        with _lock:
            if _early.pop(self, self) is None:
                return []
        return [text for counter in self.context.counters for text in counter.close()]


DYNAMO = "torch._dynamo"
_lock = locks.plain()
_early: dict[Scope, None] = {}
"""The open scopes that count nothing yet: neither the native core nor Dynamo is loaded."""


def _count_early() -> None:
    with _lock:
        while _early:
            _early.popitem()[0].count()


core.when_loaded(lambda library: _count_early())
when_imported(DYNAMO, _count_early)


class _Stack(threading.local):
    def __init__(self) -> None:
        self.scopes: list[Scope] = []


stack = _Stack()
if hasattr(os, "register_at_fork"):  # what a forked process inherits from other threads stays
    os.register_at_fork(after_in_child=lambda: BASE.opened.intersection_update(stack.scopes))


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

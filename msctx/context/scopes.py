"""The scopes: which contexts are open, in each thread the innermost last."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from msctx import notices
from msctx.context.base import BASE, Base
from msctx.native import counting, watched
from msctx.options import Layer, Settings
from msctx.plan import Plan

if TYPE_CHECKING:
    from msctx.context.ledger import Hold


class Ran:
    """How often a session has run a function in this process."""

    count = 0


class Scope:
    """One entry of one context (a :class:`msctx.Context`, whose file is above this one) by one thread."""

    def __init__(self, context: Any, settings: Settings, plan: Plan, hold: Hold | None) -> None:
        self.context, self.settings, self.plan, self.hold = context, settings, plan, hold
        self.who = threading.current_thread()
        self.outer = stack.scopes[-1] if stack.scopes else None
        self.since, self.ran = watched.times, Ran.count
        self.open = True
        self.leaving = False  # __exit__ has come; if an inner scope was open, it closes with that one
        self.visitors: set[Scope] = set()  # of bound functions that run in other threads under this scope
        counting.begin(context)

    @property
    def around(self) -> tuple[Scope, ...]:
        """The scopes around this one, the outermost first, and itself."""
        found: list[Scope] = []
        scope: Scope | None = self
        while scope is not None:
            found.insert(0, scope)
            scope = scope.outer
        return tuple(found)

    def end(self) -> list[str]:
        """Counts nothing any more; returns the rules that nothing has matched."""
        self.open = False
        BASE.opened.discard(self)
        return counting.end(self.context)


class _Stack(threading.local):
    def __init__(self) -> None:
        self.scopes: list[Scope] = []


stack = _Stack()
if hasattr(os, "register_at_fork"):  # what a forked process inherits from other threads stays
    os.register_at_fork(after_in_child=lambda: BASE.opened.intersection_update(stack.scopes))


def innermost() -> Scope | Base:
    """What is in force in this thread: its innermost scope, else the base."""
    return stack.scopes[-1] if stack.scopes else BASE


def above_base(settings: Settings) -> tuple[Layer, ...]:
    """The layers of scopes."""
    return settings.layers[len(BASE.settings.layers) :]


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

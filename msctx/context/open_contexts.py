"""Which contexts are open, in each thread the innermost last."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from msctx import notices
from msctx.context.plans import now, report
from msctx.context.process_wide import BASE, Base
from msctx.context.unused_options import ON_SOMETHING, unmet
from msctx.native import counter_lifetimes
from msctx.options import Layer, Settings
from msctx.plan import Plan

if TYPE_CHECKING:
    from msctx.context.ledger import Hold


class Scope:
    """One entry of one context (a :class:`msctx.Context`, whose file is above this one) by one thread."""

    def __init__(self, context: Any, settings: Settings, plan: Plan, hold: Hold | None) -> None:
        self.context, self.settings, self.plan, self.hold = context, settings, plan, hold
        self.who = threading.current_thread()
        self.outer = stack.scopes[-1] if stack.scopes else None
        self.since = now()
        self.open = True
        self.leaving = False  # it closes with the one inside it
        self.visitors: set[Scope] = set()  # of bound functions that run in other threads under this scope
        counter_lifetimes.begin(context)

    @property
    def around(self) -> tuple[Scope, ...]:
        """The scopes around this one, the outermost first, and itself."""
        return *(self.outer.around if self.outer else ()), self

    def end(self) -> list[str]:
        """Counts nothing any more; returns the rules that nothing has matched."""
        self.open = False
        BASE.opened.discard(self)
        return counter_lifetimes.end(self.context)

    def close(self, error: BaseException | None) -> None:
        """Restore what was found, and report what found nothing to act on; *error*: what the block has raised."""
        from msctx.context import ledger

        context, plan, hold = self.context, self.plan, self.hold
        count = sum(guest.who.is_alive() for guest in [*self.visitors])
        text = f"bind: {context.origin} was left while {count} function(s) bound to it still run in other threads"
        found = [text] * bool(count)
        try:  # first: what other threads run by what is put back now is not counted as this context's
            found += self.end()
            if hold is not None and any(name.startswith(ON_SOMETHING) for name in hold.records):
                found += unmet(plan, [s for layer in context.layers for s in layer.settings.values()], self.since)
        finally:
            try:
                if hold is not None:
                    ledger.undo(hold, strict=plan.strict)
            finally:
                context._watched.close()
        if found:
            report(found, plan, only_warn=error is not None)


def close(scope: Scope, error: BaseException | None = None) -> None:
    """What is open inside it, it, and what waits for it, because of *error*. Where one raises, the others are closed."""
    top = stack.scopes.pop()
    try:
        top.close(error)
    finally:
        if scope in stack.scopes or (stack.scopes and stack.scopes[-1].leaving):
            close(scope, error)


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
        text = f"the {scope.context.origin} was never left: the thread {scope.who.name} has ended inside it"
        notices.warn(f"{text}. Its options stay in force until another context sets them, or reset_context() restores them")

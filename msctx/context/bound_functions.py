"""Functions that carry a context into other threads and processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msctx.context import ledger
from msctx.context.open_contexts import Scope, stack
from msctx.context.plans import explain
from msctx.context.process_wide import BASE
from msctx.deferred_interrupts import Turn
from msctx.options import Settings
from msctx.plan import Plan
from msctx.switches import SWITCHES


class Bound:
    """A function that runs under the context in which it was bound, wherever it is called.

    While the scope is open, the switches of the whole process are in force already, and those that each thread has for itself
    are set for the call. In another process, or after the scope has closed, the context is entered afresh.
    """

    def __init__(self, function: Callable[..., Any], context: Any, scope: Scope | None = None, *, here: bool = False) -> None:
        """*context*: a :class:`msctx.Context` with all layers of *scope*; *here*: these were in force in this process."""
        self.function, self._context, self._scope = function, context, scope
        self._below = BASE.settings if here else None

    def __reduce__(self) -> tuple[type[Bound], tuple[Callable[..., Any], Any]]:
        return Bound, (self.function, self._context)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._scope in stack.scopes:  # called where it was bound
            return self.function(*args, **kwargs)
        if not (all(s.open for s in self._scope.around) if self._scope else self._below is BASE.settings):
            with self._context:
                return self.function(*args, **kwargs)
        settings = self._scope.settings if self._scope else Settings(self._context.layers)
        plan = self._scope.plan if self._scope else explain(settings)
        with Turn() as turn:
            hold = turn.begin(partial(_visit, plan.assignments), partial(ledger.undo, quiet=True))
            turn.begin(partial(self._arrive, settings, plan, hold), self._leave)
            return self.function(*args, **kwargs)

    def _arrive(self, settings: Settings, plan: Plan, hold: ledger.Hold) -> Scope:
        """Be, in this thread, a guest of scopes that another one holds; of the base, where there are none."""
        guest = Scope(self._context, settings, plan, hold)
        if self._scope:
            self._scope.visitors.add(guest)
        stack.scopes.append(guest)
        return guest

    def _leave(self, guest: Scope) -> None:
        if self._scope:
            self._scope.visitors.discard(guest)
        stack.scopes[:] = [s for s in stack.scopes if s is not guest]
        guest.end()


def _visit(assignments: Mapping[str, Any]) -> ledger.Hold:
    """Set in this thread what each thread has for itself of a scope that another thread holds."""
    own = {name: want for name, want in assignments.items() if SWITCHES[name].scope == "thread"}
    hold = ledger.apply(own, ledger.Hold("bound function"))
    try:
        with ledger.LOCK:
            for (name, _), holds in ledger.HELD.items():
                switch, there = SWITCHES[name], holds[-1].records[name].wrote
                if switch.scope == "inherited" and switch.read() != there:
                    hold.records[name] = ledger.Record(switch, hold.who, switch.take(), there, there)
                    switch.set(there)
    except BaseException:
        ledger.undo(hold, quiet=True)
        raise
    return hold

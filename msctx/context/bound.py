"""Functions that carry a context into other threads and processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msctx.context import ledger
from msctx.context.base import BASE, explain
from msctx.context.blocks import Context
from msctx.context.scopes import Scope, stack
from msctx.native.watched import Watched
from msctx.options import Layer, Settings
from msctx.signals import Turn
from msctx.switches import SWITCHES


class Bound:
    """A function that runs under the context in which it was bound, wherever it is called.

    While the scope is open, the switches of the whole process are in force already, and those that each thread has for itself
    are set for the call. In another process, or after the scope has closed, the context is entered afresh.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        scopes: tuple[Scope, ...],
        layers: tuple[Layer, ...],
        here: bool,
        models: Watched,
    ) -> None:
        self.function, self.layers, self._scopes, self._watched = function, layers, scopes, models
        self._base_version = BASE.version if here else -1  # *here*: what it was bound to was in force in this process

    def __getstate__(self) -> dict[str, Any]:
        return {"function": self.function, "layers": self.layers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.function, self.layers = state["function"], state["layers"]
        self._scopes, self._base_version, self._watched = (), -1, Watched()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._scopes and self._scopes[-1] in stack.scopes:  # called where it was bound
            return self.function(*args, **kwargs)
        holds = all(scope.open for scope in self._scopes) if self._scopes else self._base_version == BASE.version
        if not holds:
            with Context(self.layers, "bound function", self._watched):
                return self.function(*args, **kwargs)
        with Turn() as turn:
            turn.begin(self._arrive, self._leave)
            return self.function(*args, **kwargs)

    def _arrive(self) -> Scope:
        """Be, in this thread, a guest of scopes that another one holds; of the base, where there are none."""
        settings = self._scopes[-1].settings if self._scopes else Settings(self.layers)
        plan = self._scopes[-1].plan if self._scopes else explain(settings)
        hold = _visit(plan.assignments)
        try:
            guest = Scope(Context(self.layers, "bound function"), settings, plan, hold)
        except BaseException:
            ledger.undo(hold, quiet=True)
            raise
        for scope in self._scopes[-1:]:
            scope.visitors.add(guest)
        stack.scopes.append(guest)
        return guest

    def _leave(self, guest: Scope) -> None:
        for scope in self._scopes[-1:]:
            scope.visitors.discard(guest)
        stack.scopes[:] = [s for s in stack.scopes if s is not guest]
        try:
            guest.end()
        finally:
            assert guest.hold is not None
            ledger.undo(guest.hold, quiet=True)


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

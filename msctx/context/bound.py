"""Functions that carry a context into other threads and processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msctx.context.base import BASE, explain
from msctx.context.blocks import Context
from msctx.context.scopes import Scope, stack
from msctx.native.watched import Watched
from msctx.options import Layer, Settings
from msctx.signals import uninterrupted

if TYPE_CHECKING:
    from msctx.context.ledger import Hold


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
        self._here = here  # what it was bound to was in force in this process
        self._base_version = BASE.version

    def __getstate__(self) -> dict[str, Any]:
        return {"function": self.function, "layers": self.layers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.function, self.layers = state["function"], state["layers"]
        self._scopes, self._here, self._base_version, self._watched = (), False, -1, Watched()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        own = Context(self.layers, "bound function", self._watched)
        if self._scopes and self._scopes[-1] in stack.scopes:  # called where it was bound
            return self.function(*args, **kwargs)
        with _Guest(self._scopes, self.layers) if self._still_holds() else own:
            return self.function(*args, **kwargs)

    def _still_holds(self) -> bool:
        if self._scopes:
            return all(scope.open for scope in self._scopes)
        return self._here and self._base_version == BASE.version


class _Guest:
    """Is, in this thread, a guest of scopes that another one holds (none: of the base) while it is entered."""

    def __init__(self, scopes: tuple[Scope, ...], layers: tuple[Layer, ...]) -> None:
        self._scopes, self._layers = scopes, layers
        self._visitors = scopes[-1].visitors if scopes else set()
        self._begun: list[Hold] = []
        self._guests: list[Scope] = []

    def __enter__(self) -> None:
        try:
            with uninterrupted():
                self._begin()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *error: object) -> None:
        with uninterrupted():
            self._end()

    def _begin(self) -> None:

        settings = self._scopes[-1].settings if self._scopes else Settings(self._layers)
        plan = self._scopes[-1].plan if self._scopes else explain(settings)
        self._begun.append(hold := _visit(plan.assignments))
        own = self._scopes[-1].layers if self._scopes else ()
        self._guests.append(guest := Scope(Context(self._layers, "bound function"), own, settings, plan, hold))
        self._visitors.add(guest)
        stack.scopes.append(guest)

    def _end(self) -> None:
        from msctx.context import ledger

        try:
            for guest in self._guests:
                self._visitors.discard(guest)
                stack.scopes[:] = [s for s in stack.scopes if s is not guest]
                guest.end()
        finally:
            begun, self._begun[:] = [*self._begun], []
            for hold in begun:
                ledger.undo(hold, quiet=True)


def _visit(assignments: Mapping[str, Any]) -> Hold:
    """Set in this thread what each thread has for itself of a scope that another thread holds."""
    from msctx.context import ledger
    from msctx.switches import SWITCHES

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

"""Which contexts are open, in each thread the innermost last; and what processes inherit of them."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import process
from typing import TYPE_CHECKING, Any

from msctx import notices
from msctx.context.process_wide import BASE, Base, report
from msctx.context.unused_options import ON_SOMETHING, now, unmet
from msctx.deferred_interrupts import uninterrupted
from msctx.errors import MsctxError, MsctxWarning
from msctx.import_hooks import when_imported
from msctx.native import counter_lifetimes
from msctx.options import Layer, Settings
from msctx.options.layer_sources import INHERITED, stacked
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
        self.leaving = False  # __exit__ has come; if an inner scope was open, it closes with that one
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


def close_late(scopes: list[Scope], error: BaseException | None = None) -> None:
    """Those on top whose __exit__ has come, because of *error*; one that raises does not keep the others from being closed."""
    if scopes and scopes[-1].leaving:
        try:
            scopes.pop().close(error)
        finally:
            close_late(scopes, error)


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


KEY = "msctx"
SEEDS = ("seed", "seed_by_rank")
Layers = tuple[Layer, ...]


class _Carrier:
    """Lies in the configuration that every process hands to its children.

    Only for a new interpreter (spawn, forkserver) is it pickled, by the thread that starts it; a forked child has all already.
    """

    def __reduce__(self) -> Any:
        return _arrive, (BASE.levels, above_base(innermost().settings), BASE.read_environment)


_carrier = _Carrier()
# All that multiprocessing hands on by every start method: no hook of its own runs in a child before the program does.
process.current_process()._config.setdefault(KEY, _carrier)  # type: ignore[attr-defined]


def _arrive(levels: Mapping[str, Layer], layers: Layers, has_read: bool) -> _Carrier:
    """In the child, before it does anything: torch is imported where its program does that.

    *has_read*: the environment is among the levels, or was taken back.
    """
    BASE.read_environment = BASE.read_environment or has_read

    def take_over() -> None:
        if has_read and not BASE.levels.keys() <= levels.keys():  # the program's main module, imported first, has read it
            BASE.reset()
        if levels or layers:
            BASE.change({**levels, INHERITED: stacked((levels.get(INHERITED, Layer()), *layers))}, absent=True)

    if levels or layers or BASE.levels:
        when_imported("torch", lambda: _reported(take_over))
    return _carrier


def _reported(call: Any) -> None:
    try:
        call()
        BASE.since.clear()  # the parent reports it
    except MsctxError as error:
        text = f"this process runs without the options of the one that started it: {error}"
        warnings.warn(text, MsctxWarning, stacklevel=2)


class WorkerInit:
    """What :attr:`msctx.Context.worker_init_fn` gives: may be pickled, and called in another process."""

    def __init__(self, layers: Layers) -> None:
        self.layers = layers

    def __call__(self, worker_id: int = 0) -> None:
        """A seed is left out: each worker has random numbers of its own."""
        with uninterrupted(), warnings.catch_warnings(), suppress(MsctxError):  # what the worker has set since stays
            warnings.simplefilter("ignore", MsctxWarning)
            for scope in stack.scopes:  # a fork has inherited them
                scope.leaving = True
            close_late(stack.scopes)
        if (data := sys.modules.get("torch.utils.data")) is not None and data.get_worker_info() is not None:
            sys.modules["torch"].set_num_threads(1)  # as the DataLoader has it in its workers
        layers = [Layer({k: s for k, s in one.settings.items() if k not in SEEDS}, one.lost) for one in self.layers]
        _reported(lambda: BASE.replace(INHERITED, stacked(layers)))

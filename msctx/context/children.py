"""Processes that multiprocessing starts run under what the thread that started them held, however they are started."""

from __future__ import annotations

import warnings
from multiprocessing import process
from typing import Any

from msctx.context.base import BASE
from msctx.context.scopes import in_force, stack
from msctx.errors import MsctxError, MsctxWarning
from msctx.imports import when_imported
from msctx.options import Layer
from msctx.signals import uninterrupted

KEY = "msctx"
Layers = tuple[Layer, ...]


class _Carrier:
    """Lies in the configuration that every process hands to its children.

    Only for a new interpreter (spawn, forkserver) is it pickled, by the thread that starts it; a forked child has all already.
    """

    def __reduce__(self) -> Any:
        return _arrive, (held(),)


_carrier = _Carrier()


def held() -> Layers:
    """Every layer in force in this thread, the base's first."""
    return (*BASE.layers, *in_force()[0])


def install() -> None:
    process.current_process()._config.setdefault(KEY, _carrier)  # type: ignore[attr-defined]


def _arrive(layers: Layers) -> _Carrier:
    """In the child, before it does anything: torch is imported where its program does that."""
    if layers:
        when_imported("torch", lambda: hold(layers))
    return _carrier


def hold(layers: Layers, *, alone: bool = False) -> None:
    """Enter a context that nobody leaves: it holds as long as the process.

    Args:
        alone: leave first what was inherited of scopes by a fork.
    """
    from msctx.context import Context, _close_late

    try:
        if alone:
            with uninterrupted():
                for scope in stack.scopes:
                    scope.leaving = True
                _close_late(stack.scopes)
        if layers:
            Context(layers, "worker process").__enter__()
    except MsctxError as error:
        text = f"this process runs without the options of the one that started it: {error}"
        warnings.warn(text, MsctxWarning, stacklevel=2)


class WorkerInit:
    """What :attr:`msctx.Context.worker_init_fn` gives: may be pickled, and called in another process."""

    def __init__(self, layers: Layers) -> None:
        self.layers = layers

    def __call__(self, worker_id: int = 0) -> None:
        hold(self.layers, alone=True)

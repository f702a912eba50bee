"""What processes inherit of the contexts that are open where they are started."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import process
from typing import Any

from msctx.context.open_contexts import above_base, close, innermost, stack
from msctx.context.process_wide import BASE
from msctx.deferred_interrupts import uninterrupted
from msctx.errors import MsctxError, MsctxWarning
from msctx.import_hooks import when_imported
from msctx.options import Layer
from msctx.options.layer_sources import INHERITED
from msctx.options.settings import stacked

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
            if stack.scopes:  # a fork has inherited them
                close(stack.scopes[0])
        if (data := sys.modules.get("torch.utils.data")) is not None and data.get_worker_info() is not None:
            sys.modules["torch"].set_num_threads(1)  # as the DataLoader has it in its workers
        layers = [Layer({k: s for k, s in one.settings.items() if k not in SEEDS}, one.lost) for one in self.layers]
        _reported(lambda: BASE.replace(INHERITED, stacked(layers)))

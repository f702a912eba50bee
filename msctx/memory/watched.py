"""The models that :meth:`msctx.Context.watch` has been told of, for all that is done to whole models."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from msctx.native import watching

if TYPE_CHECKING:
    from torch import nn

lock = threading.RLock()
_models: list[weakref.ref[nn.Module]] = []
_listeners: list[Callable[[nn.Module], None]] = []


def watch(model: nn.Module) -> None:
    watching.watch(model)
    with lock:
        if not any(known() is model for known in _models):
            _models.append(weakref.ref(model, _models.remove))
        for listener in _listeners:
            listener(model)


def models() -> list[nn.Module]:
    return [model for known in list(_models) if (model := known()) is not None]


def listen(listener: Callable[[nn.Module], None]) -> None:
    """Call *listener* with each model that is watched from now on, whenever it is."""
    _listeners.append(listener)

"""Watched models: which module each convolution's weight belongs to, told to the library by the weight's storage."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from msctx.native import core

if TYPE_CHECKING:
    from torch import nn

_lock = threading.Lock()
_weights: dict[tuple[int, str], tuple[weakref.ref[nn.Module], str]] = {}
"""(id of a module, its path) → the module, which has a weight of three dimensions or more."""
_known: dict[tuple[int, str], tuple[int, str]] = {}
"""The same key → (storage, shape) as the library has it."""


def watch(model: nn.Module) -> int:
    """Register the convolutions of *model* by their paths; returns how many there are."""
    found = 0
    with _lock:
        for path, module in model.named_modules():
            weight = getattr(module, "weight", None)
            if getattr(weight, "ndim", 0) >= 3:
                key = (id(module), path.replace("_orig_mod.", ""))
                _weights[key] = (weakref.ref(module, lambda _, key=key: _forget(key)), key[1])
                found += 1
    if (library := core.loaded()) is not None:
        refresh(library)
    return found


def refresh(library: core.Core) -> None:
    """Tell the library where the watched weights are now: a weight may have got a new storage since."""
    with _lock:
        for key, (reference, path) in list(_weights.items()):
            weight = getattr(reference(), "weight", None)
            if weight is None or weight.untyped_storage()._cdata == 0:
                continue
            place = (weight.untyped_storage()._cdata, "x".join(map(str, weight.shape)))
            if _known.get(key) != place:
                if key in _known:
                    library.unwatch(*_known[key], path)
                library.watch(*place, path)
                _known[key] = place


def _forget(key: tuple[int, str]) -> None:
    _weights.pop(key, None)  # no lock: this may run while any other code of ours does
    place, library = _known.pop(key, None), core.loaded()
    if place is not None and library is not None:
        library.unwatch(*place, key[1])

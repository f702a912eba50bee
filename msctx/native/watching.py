"""Watched models: which module each convolution's weight belongs to, told to the library by the weight's storage."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from msctx.native import core, named_modules

if TYPE_CHECKING:
    import torch
    from torch import nn

_lock = threading.Lock()
_modules: dict[tuple[int, str], tuple[weakref.ref[nn.Module], str]] = {}
"""(id of a module, its path) → the module, which has a weight of three dimensions or more."""
_known: dict[tuple[int, str], tuple[int, int, str, str]] = {}
"""The same key → (storage, offset in it, shape, dtype) as the library has it."""


def _weight(module: nn.Module) -> tuple[torch.Tensor | None, bool]:
    """The weight of a module, and whether it is computed anew from others each time.

    ``module.weight`` is not asked for: it may run a parametrization, which may draw random numbers or change its state.
    """
    weight = module._parameters.get("weight")
    if weight is not None:
        return weight, False
    parts = getattr(module._modules.get("parametrizations"), "_modules", {}).get("weight")
    own = [module._parameters.get("weight_v")] if parts is None else list(parts._parameters.values())
    tensors = [t for t in own if t is not None and t.ndim >= 3]
    return max(tensors, key=lambda t: t.numel(), default=None), True


def watch(model: nn.Module) -> int:
    """Register the convolutions of *model* by their paths; returns how many there are."""
    from torch import nn

    if not isinstance(model, nn.Module):
        raise TypeError(f"watch() takes a torch.nn.Module, not {type(model).__name__}")
    found = 0
    named_modules.watch(model)
    with _lock:
        for path, module in model.named_modules():
            weight, _ = _weight(module)
            if weight is not None and weight.ndim >= 3:
                key = (id(module), path.replace("_orig_mod.", ""))
                _modules[key] = (weakref.ref(module, lambda _, key=key: _forget(key)), key[1])
                found += 1
    if (library := core.loaded()) is not None:
        refresh(library)
    return found


def refresh(library: core.Core) -> None:
    """Tell the library where the watched weights are now: a weight may have got a new storage since."""
    import torch

    with _lock:
        for key, (reference, path) in list(_modules.items()):
            module = reference()
            weight, is_computed = (None, False) if module is None else _weight(module)
            if weight is None or weight.layout != torch.strided or weight.untyped_storage()._cdata == 0:
                continue
            dtype = "" if is_computed else str(weight.dtype).removeprefix("torch.")
            place = (weight.untyped_storage()._cdata, weight.storage_offset(), "x".join(map(str, weight.shape)), dtype)
            if _known.get(key) != place:
                if key in _known:
                    library.unwatch(*_known[key][:2], path)
                library.watch(*place, path)
                _known[key] = place


def _forget(key: tuple[int, str]) -> None:
    _modules.pop(key, None)  # no lock: this may run while any other code of ours does
    place, library = _known.pop(key, None), core.loaded()
    if place is not None and library is not None:
        library.unwatch(*place[:2], key[1])

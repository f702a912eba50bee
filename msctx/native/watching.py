"""Watched models: which module the weight of a convolution or product belongs to, for the library by the weight's storage.

Where the library meets a weight that it cannot name, it has the models looked at again before it computes: a weight may have got
another storage, by ``parameter.data = …``, ``load_state_dict(assign=True)``, an optimizer's flat views. Weights that no module holds
are met, too: where looking changes nothing, more and more must be met before the next look, until it costs one module for each;
unless a named weight is gone.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn.parameter import is_lazy

from msctx.native import core, watched
from msctx.native.installed import AtWork
from msctx.native.watched import Model
from msctx.signals import uninterrupted

if TYPE_CHECKING:
    import torch
    from torch import nn

Key = tuple[int, str, int]
"""id of a module, its path, the number of its model."""


class _Place(NamedTuple):
    storage: int
    offset: int
    shape: str
    dtype: str


_at_work = AtWork()
_modules: dict[Key, tuple[weakref.ref[nn.Module], _Place]] = {}
"""The modules that the library has names for, and where their weights were then."""


class _Next:
    """When the models are looked at again."""

    thread = 0  # that looks now

    misses = 0  # since the last look
    enough = 1


def _died(key: Key, reference: weakref.ref[nn.Module]) -> None:
    def forget() -> None:
        found, place = _modules.get(key, (None, None))
        if found is reference and place is not None:  # else another module has its id by now
            del _modules[key]
            if (library := core.loaded()) is not None:
                library.c.msctx_unwatch(place.storage, place.offset, key[1], key[2])

    _at_work.later(forget)


def _weight(module: nn.Module) -> tuple[torch.Tensor | None, bool]:
    """The weight of a module, and whether it is computed anew from others each time.

    ``module.weight`` is not requested: it may run a parametrization, which may draw random numbers or change its state.
    """
    weight = _of(module._parameters, "weight")
    if weight is not None:
        return weight, False
    parts = _of(getattr(_of(module._modules, "parametrizations"), "_modules", {}), "weight")
    own = [_of(module._parameters, "weight_v")] if parts is None else list(parts._parameters.values())
    tensors = [t for t in own if t is not None and t.ndim >= 2]
    return max(tensors, key=lambda t: t.numel(), default=None), True


def _of(found: Any, name: str) -> Any:
    """What a scripted module has is in no dict, and without get()."""
    return found[name] if name in found else None  # noqa: SIM401


@contextmanager
def _looking() -> Iterator[None]:
    """Signals wait: their handlers may compute, or watch a model."""
    with uninterrupted(), _at_work.lock:
        _Next.thread = threading.get_ident()
        try:
            yield
        finally:
            _Next.thread = 0
    _at_work.tidy()


def watch(model: Model, module: nn.Module) -> None:
    """Name the convolutions and linear layers of a model by their paths, from now on while :func:`turn` has it on."""
    if (library := core.loaded()) is not None:
        with _looking():
            _look_at(library, model.number, module)
            _forget_models(library)


def _forget_models(library: core.Core) -> None:
    """Those that are gone, though modules of theirs live on in others."""
    alive = {model.number for model, _ in watched.alive()} | {model.number for model in watched.open_ones()}
    for key in [key for key in _modules if key[2] not in alive]:
        _, place = _modules.pop(key)
        library.c.msctx_unwatch(place.storage, place.offset, key[1], key[2])


def turn(model: Model, on: bool) -> None:
    """Whether a context that watches a model is open."""
    if (library := core.loaded()) is not None:
        library.c.msctx_watch_model(model.number, on)


def begin(library: core.Core) -> None:
    """Send a library that is new what was watched before."""
    library.c.msctx_look_for_weights(_look)
    for model in watched.open_ones():
        library.c.msctx_watch_model(model.number, True)
    _look_again(library)


def _look(now: int) -> int:
    """Called by the library in the thread of a convolution or product; ``now``: a named weight is gone."""
    library = core.loaded()
    if library is None or _Next.thread == threading.get_ident():  # a finalizer computes while this thread looks
        return 0
    _Next.misses += 1
    if now or _Next.misses >= _Next.enough:
        _look_again(library)
    return 0


def _look_again(library: core.Core) -> None:
    with _looking():
        library.c.msctx_watch_looks()
        changed = [_look_at(library, model.number, module) for model, module in watched.alive()]
        _Next.enough = 1 if any(changed) else min(2 * _Next.enough, max(1, len(_modules)))
        _Next.misses = 0


def _look_at(library: core.Core, number: int, model: nn.Module) -> bool:
    """Whether anything has changed."""

    if torch.jit.is_tracing():  # type: ignore[attr-defined]  # a trace would record that shapes are read
        return False
    changed = False
    for path, module in watched.paths_of(model):
        weight, is_computed = _weight(module)
        if weight is None or is_lazy(weight) or weight.ndim < 2 or _has_no_storage(weight):
            continue  # torch.func's wrappers are in the place of parameters for a while
        key = (id(module), path, number)
        dtype = "" if is_computed else str(weight.dtype).removeprefix("torch.")
        storage = weight.untyped_storage()  # held until the library has it: another thread may give the weight another one
        place = _Place(storage._cdata, int(weight.storage_offset()), "x".join(map(str, weight.shape)), dtype)
        found, before = _modules.get(key, (None, None))
        if found is not None and found() is module and before == place:
            continue
        if before is not None:
            library.c.msctx_unwatch(before.storage, before.offset, key[1], number)
        library.c.msctx_watch(*place, key[1], number)
        _modules[key] = weakref.ref(module, partial(_died, key)), place
        changed = True
    return changed


def _has_no_storage(weight: torch.Tensor) -> bool:

    if weight.layout != torch.strided:
        return True
    try:
        return bool(weight.untyped_storage()._cdata == 0)
    except RuntimeError:
        return True


watched.CHANGED.append(watch)
watched.TURNED.append(turn)
core.when_loaded(begin)

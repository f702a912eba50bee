"""Models given to ``ctx.watch(model)``, acted on while a context that watches them is open: the paths and weights of their modules.

The library knows whose a weight is by its storage. Where it meets one without a name, all models are looked at again before it
computes: ``parameter.data = …``, ``load_state_dict(assign=True)`` or flat views of an optimizer give a weight another storage.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from msctx.native import core, counter_lifetimes

if TYPE_CHECKING:
    import torch
    from torch import nn

lock = threading.RLock()
PARALLEL = {"DistributedDataParallel", "FSDPModule"}


class Model:
    """A model that was watched.

    Attributes:
        module: returns it, while it is alive.
        number: its number in the library.
        paths: of all modules that it has had: it may be gone when they are needed.
        kinds: what of :data:`PARALLEL` is or was among its modules.
        found: its modules when it was last looked at: the path of each, it itself, and where its weight was.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module, self.number = weakref.ref(module), next(_numbers)
        self.paths: frozenset[str] = frozenset()
        self.kinds: frozenset[str] = frozenset()
        self.found: list[tuple[str, weakref.ref[nn.Module], list[Any] | None]] = []


class Place:
    """A module of watched models.

    Attributes:
        module: returns it.
        paths: model → its path in it.
        shown: how observers name it since a moment.
        inside: which policies were in force, on which models, at a moment, and the number of what they are inside it.
    """

    __slots__ = ("inside", "module", "moment", "paths", "shown")

    def __init__(self, module: weakref.ref[nn.Module]) -> None:
        self.module, self.paths = module, dict[Model, str]()
        self.shown: Any = None
        self.moment = -1
        self.inside: tuple[Any, Any, int, int | None] = None, None, -1, None


_numbers = itertools.count(1)
KNOWN: list[Model] = []
"""All that were watched, also by contexts that were left."""
_places: dict[int, Place] = {}
"""id of a module → its place; another one, when anything has changed. A module that has gone may have left its id to a new one."""
OPEN: Counter[Model] = Counter()
"""How many open contexts watch a model."""


def record(module: nn.Module) -> Model:
    with lock:
        found = next((model for model in KNOWN if model.module() is module), None)
        if found is None:
            KNOWN.append(found := Model(module))
        return found


# --- contexts ---------------------------------------------------------------------------------------------------------

times = last_end = 0
"""How often a model has begun or ceased to be acted on, and which of these times was the last at which one has ceased."""
FOLLOWERS: list[Any] = []
"""Their ``begin`` is called with each model that is acted on from now on, ``end`` with one that is no longer."""


class Watched:
    """The models of one context: it keeps them from entry to entry. Of the base, which is never left, they are for the process."""

    def __init__(self, *, is_open: bool = False) -> None:
        self._models: dict[Model, None] = {}
        self._entries = int(is_open)

    def watch(self, model: nn.Module) -> None:
        from torch import nn

        if not isinstance(model, nn.Module):
            raise TypeError(f"watch() takes a torch.nn.Module, not {type(model).__name__}")
        with lock:
            look([found := record(unwrapped(model))])
            self._forget_the_gone()
            is_new = found not in self._models
            self._models[found] = None  # first: what follows may raise
            if self._entries and is_new:
                _begin([found])

    def alive(self) -> list[nn.Module]:
        with lock:
            return [module for model in self._models if (module := model.module()) is not None]

    def _forget_the_gone(self) -> None:
        for gone in [known for known in self._models if known.module() is None]:
            del self._models[gone]
            if self._entries:
                _end(gone)

    def open(self) -> None:
        """A context that watches them is entered; :meth:`close` follows, also where that fails."""
        with lock:
            if OF_PROCESS._models:
                OF_PROCESS._forget_the_gone()
            self._entries += 1
            if self._models and self._entries == 1:
                _begin([*self._models])

    def close(self) -> None:
        with lock:
            self._entries -= 1
            for model in self._models if not self._entries else ():
                _end(model)


def _begin(models: Iterable[Model]) -> None:
    """One more open context watches them."""
    global times
    begun = [model for model in models if model not in OPEN]
    OPEN.update(models)
    for model in begun:
        times += 1
        counter_lifetimes.MET.update(model.kinds)
        _turn(model, True)
    for module in [module for model in begun if (module := model.module()) is not None]:
        for follower in FOLLOWERS:
            follower.begin(module)


def _end(model: Model) -> None:
    global times, last_end
    OPEN[model] -= 1
    if OPEN[model]:
        return
    del OPEN[model]
    times = last_end = times + 1
    _turn(model, False)
    if (module := model.module()) is not None:
        for follower in FOLLOWERS:
            follower.end(module)


def _turn(model: Model, on: bool) -> None:
    if (library := core.loaded()) is not None:
        library.c.msctx_watch_model(model.number, on)


OF_PROCESS = Watched(is_open=True)


def models() -> list[nn.Module]:
    """Those that are acted on now."""
    with lock:
        return [module for model in OPEN if (module := model.module()) is not None]


# --- modules and their weights ----------------------------------------------------------------------------------------

_looked = 0
"""The moment at which the models were last looked at: the first call of a module does that, not the entry of a context."""


def paths_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """What ``model.named_modules()`` gives, without the wrappers of torch.compile in the paths."""
    return [(path.replace("_orig_mod.", ""), module) for path, module in model.named_modules()]


def unwrapped(module: nn.Module) -> nn.Module:
    """The module that a wrapper of torch.compile wraps, else the module itself."""
    # What a scripted module has is without get()
    return module._modules["_orig_mod"] if "_orig_mod" in module._modules else module  # type: ignore[return-value]  # noqa: SIM401


def place_of(module: nn.Module) -> Place | None:
    """The place of a module of watched models; a wrapper of torch.compile has that of the module that it wraps."""
    global _looked
    if _looked != times:
        with lock:
            moment = times
            look([*OPEN])
            _looked = moment
    if (place := _places.get(id(module))) is not None and place.module() is module:
        return place
    return place_of(unwrapped(module)) if "_orig_mod" in module._modules else None


def look(models: Iterable[Model] | None = None) -> bool:
    """Find the modules and weights of models anew, some microseconds a module; whether anything has changed.

    The library calls it for all models in the thread of a convolution or product.
    """
    global KNOWN, _places
    import torch

    if torch.jit.is_tracing():  # type: ignore[attr-defined]  # a trace would record that shapes are read
        return False
    with lock:
        gone = [model for model in KNOWN if model.module() is None]
        changed = [model for model in (KNOWN if models is None else [*models, *gone]) if _look_at(model)]
        if not changed:
            return False
        places = dict[int, Place]()
        KNOWN = [model for model in KNOWN if model.found or model.module() is not None]
        for model in KNOWN:
            for path, reference, _ in model.found:
                if (module := reference()) is not None:
                    places.setdefault(id(module), Place(reference)).paths[model] = path
        _places = places
        return True


def _look_at(model: Model) -> bool:
    module, library = model.module(), core.loaded()
    storages: list[Any] = []  # held until the library has them: another thread may give a weight another one
    modules = paths_of(module) if module is not None else ()
    found = [(path, weakref.ref(one), _spot(one, storages)) for path, one in modules]
    if found == model.found:
        return False
    if library is not None:
        library.c.msctx_watch(model.number, core.json_of([[*spot, path] for path, _, spot in found if spot is not None]))
    model.found = found
    model.paths |= {path for path, _, _ in found}
    model.kinds |= {kind.__name__ for _, one in modules for kind in type(one).__mro__ if kind.__name__ in PARALLEL}
    return True


def _spot(module: nn.Module, storages: list[Any]) -> list[Any] | None:
    """Where the weight of a module is: its storage, its place in it, its shape, and its dtype unless it is computed each time.

    ``module.weight`` is not requested: it may run a parametrization, which may draw random numbers or change its state.
    """
    own: Any = module._parameters
    weight = own["weight"] if "weight" in own else None  # noqa: SIM401  # what a scripted module has is without get()
    if is_computed := weight is None:
        weight = max(_parts(module), key=lambda tensor: tensor.numel(), default=None)
    try:
        if weight is None or weight.ndim < 2 or not (storage := weight.untyped_storage())._cdata:
            return None  # torch.func's wrappers are in the place of parameters for a while
    except (RuntimeError, ValueError):  # no storage; not initialised yet
        return None
    storages.append(storage)
    dtype = "" if is_computed else str(weight.dtype).removeprefix("torch.")
    return [storage._cdata, weight.storage_offset(), "x".join(map(str, weight.shape)), dtype]


def _parts(module: Any) -> list[torch.Tensor]:
    """From which its weight is computed."""
    found = [module._parameters["weight_v"]] if "weight_v" in module._parameters else []
    if "parametrizations" in module._modules and "weight" in (computed := module._modules["parametrizations"]._modules):
        found = [*computed["weight"]._parameters.values()]
    return [tensor for tensor in found if tensor is not None and tensor.ndim >= 2]


def send_all(library: core.Core) -> None:
    """To a library that is new."""
    library.c.msctx_look_for_weights(look)
    for model in [*KNOWN]:
        model.found = []
    look()
    for model in [*OPEN]:
        _turn(model, True)

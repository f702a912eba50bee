"""Models given to ``ctx.watch(model)``: acted on while a context that watches them is open; and the names of their modules."""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from msctx import locks

if TYPE_CHECKING:
    import torch
    from torch import nn

lock = locks.reentrant()


class Place(weakref.ref["nn.Module"]):
    """A module of watched models; called, it returns the module.

    Attributes:
        paths: model → the path of the module in it.
        model: the model that the module is itself.
        shown: how observers name it since a moment.
    """

    __slots__ = ("key", "model", "moment", "paths", "shown")

    def __init__(self, module: nn.Module, ended: Callable[[Place], object]) -> None:
        super().__init__(module, ended)  # type: ignore[call-arg]
        self.key = id(module)
        self.paths: dict[Model, str] = {}
        self.model: Model | None = None
        self.shown: Any = None
        self.moment = -1


class Model:
    """A model that was watched.

    Attributes:
        module: returns it, while it is alive.
        number: its number in the library.
        paths: of all modules that it has had: it may be gone when they are needed.
    """

    def __init__(self, module: Place) -> None:
        self.module, self.number = module, next(_numbers)
        self.paths: frozenset[str] = frozenset()
        self.seen: list[tuple[Any, ...]] = []

    @property
    def is_open(self) -> bool:
        return self in OPEN


_numbers = itertools.count(1)
_places: dict[int, Place] = {}
"""id of a living module → its place. No lock guards it: a finalizer may look for a module in any line."""
OPEN: Counter[Model] = Counter()
"""How many open contexts watch a model."""


def _placed(module: nn.Module) -> Place:
    if (place := _places.get(id(module))) is None:
        place = _places[id(module)] = Place(module, _forget)
    return place


def _forget(place: Place, places: dict[int, Place] = _places) -> None:
    places.pop(place.key, None)


def record(module: nn.Module) -> Model:
    place = _placed(module)
    place.model = place.model or Model(place)
    return place.model


def alive() -> list[tuple[Model, nn.Module]]:
    """All that were watched, also by contexts that were left."""
    return [(place.model, module) for place in [*_places.values()] if place.model and (module := place()) is not None]


def open_ones() -> frozenset[Model]:
    return frozenset([*OPEN])


# --- contexts ---------------------------------------------------------------------------------------------------------

_times = 0
"""How often a model has begun or ceased to be acted on."""
_last_end = 0
"""The last of these times at which one ceased to be."""
Listener = Callable[["nn.Module"], None]
_begins: list[Listener] = []
_ends: list[Listener] = []


class Watched:
    """The models of one context: it keeps them from entry to entry. Of the base, which is never left, they are for the process."""

    def __init__(self, *, is_open: bool = False) -> None:
        self._models: dict[Model, None] = {}
        self._entries = int(is_open)
        self._moments: list[int] = []

    def watch(self, model: nn.Module) -> None:
        from torch import nn

        if not isinstance(model, nn.Module):
            raise TypeError(f"watch() takes a torch.nn.Module, not {type(model).__name__}")
        model = unwrapped(model)
        with lock:
            name(found := record(model))
            if found in self._models:
                return
            self._models = {known: None for known in self._models if known.module() is not None or self._entries}
            self._models[found] = None
            if self._entries and _begin(found):
                _tell([model])

    def alive(self) -> list[nn.Module]:
        with lock:
            return [module for model in self._models if (module := model.module()) is not None]

    def open(self) -> None:
        """A context that watches them is entered; :meth:`close` follows, also where that fails."""
        with lock:
            self._moments.append(now() if OF_PROCESS._models else _times)
            self._entries += 1
            begun = [model.module() for model in self._models if self._entries == 1 and _begin(model)]
        if begun:
            _tell(begun)

    def close(self) -> None:
        with lock:
            self._moments.pop()
            self._entries -= 1
            if not self._entries:
                for model in self._models:
                    _end(model)

    def since(self) -> int:
        """The moment of the last entry that was not left."""
        return self._moments[-1]


def _begin(model: Model) -> bool:
    """One more open context watches a model; whether it is the first."""
    global _times
    OPEN[model] += 1
    if OPEN[model] > 1:
        return False
    _times += 1
    if model.module() is None:
        model.paths = frozenset()
    for turned in TURNED:
        turned(model, True)
    return True


def _tell(begun: Iterable[nn.Module | None]) -> None:
    with lock:
        for model in begun:
            for listener in _begins if model is not None else ():
                listener(model)  # type: ignore[arg-type]


def _end(model: Model) -> None:
    global _times, _last_end
    OPEN[model] -= 1
    if OPEN[model]:
        return
    del OPEN[model]
    _times = _last_end = _times + 1
    _left.pop(model.paths, None)
    _left[model.paths] = _times
    if len(_left) > _KEPT:
        del _left[next(iter(_left))]
    for turned in TURNED:
        turned(model, False)
    if (module := model.module()) is not None:
        for listener in _ends:
            listener(module)


OF_PROCESS = Watched(is_open=True)


def models() -> list[nn.Module]:
    """Those that are acted on now."""
    with lock:
        _forget_the_gone()
        return [module for model in OPEN if (module := model.module()) is not None]


def _forget_the_gone() -> None:
    """The process's: what a context has watched while it was open counts until it is left."""
    for model in [model for model in OF_PROCESS._models if model.module() is None]:
        del OF_PROCESS._models[model]
        _end(model)


def now() -> int:
    """A moment, for the functions below."""
    with lock:
        _forget_the_gone()
        return _times


def any_since(moment: int) -> bool:
    """Whether any model was acted on at some time since then, or could be."""
    return _times > moment or bool(OPEN)


def since(moment: int) -> list[nn.Module] | None:
    """Those that were acted on at some time since then; ``None``: some of them are gone."""
    found = models()
    return found if _last_end <= moment and len(found) == len(OPEN) else None


def listen(begin: Listener, end: Listener | None = None) -> None:
    """Call *begin* with each model that is acted on from now on, and *end* with one that is no longer."""
    _begins.append(begin)
    if end is not None:
        _ends.append(end)


# --- names ------------------------------------------------------------------------------------------------------------

CHANGED: list[Callable[[Model, nn.Module], object]] = []
"""Called with a model whose modules, their names or the places of their weights are not those that were known."""
TURNED: list[Callable[[Model, bool], object]] = []
"""Called with a model that begins or ceases to be acted on; it may be gone."""
_looked = 0
"""The moment at which the models were last looked at: the first call of a module does that, not the entry of a context."""
_left: dict[frozenset[str], int] = {}
"""Paths of a model → the moment when the last context that watched such a model was left."""
_KEPT = 64


def paths_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """What ``model.named_modules()`` gives, without the wrappers of torch.compile in the paths.

    That is slower: there each module passes through a generator of every module around it.
    """
    found: dict[nn.Module, str] = {}
    todo = [("", model)]
    while todo:
        path, module = todo.pop()
        if module not in found:
            found[module] = path.replace("_orig_mod.", "")
            start = f"{path}." if path else ""
            todo += [(start + key, child) for key, child in reversed([*module._modules.items()]) if child is not None]
    return [(path, module) for module, path in found.items()]


def unwrapped(module: nn.Module) -> nn.Module:
    """The module that a wrapper of torch.compile wraps, else the module itself."""
    # What a scripted module has is without get()
    return module._modules["_orig_mod"] if "_orig_mod" in module._modules else module  # type: ignore[return-value]  # noqa: SIM401


def name(model: Model) -> None:
    """Note the modules of a model by their paths. It costs a microsecond a module: a context may watch a model in every step."""
    if (module := model.module()) is None:
        return
    before, model.seen = model.seen, []
    for path, one in paths_of(module):
        place = _placed(one)
        model.seen.append((path, place, *map(_address_of, [*one._parameters.values()])))
        if place.paths.get(model) != path:
            for gone in [other for other in [*place.paths] if other.module() is None and not other.is_open]:
                place.paths.pop(gone, None)
            place.paths[model], place.moment = path, -1
    if model.seen == before:
        return
    inside = {row[1].key for row in model.seen}
    for place in [row[1] for row in before if row[1].key not in inside]:  # it has left the model
        place.paths.pop(model, None)
        place.moment = -1
    model.paths |= {row[0] for row in model.seen}
    for changed in CHANGED:
        changed(model, module)


def _address_of(parameter: torch.Tensor | None) -> int:
    try:
        return parameter.data_ptr() if parameter is not None else 0
    except (RuntimeError, ValueError):  # no memory of its own; not initialised yet
        return 0


def moment() -> int:
    """As :func:`now`, where models that have gone do not matter: without a lock."""
    return _times


def place_of(module: nn.Module) -> Place | None:
    """The place of a module of watched models; a wrapper of torch.compile has that of the module that it wraps."""
    if _looked != _times:
        _look()
    place = _places.get(id(module))
    return _places.get(id(unwrapped(module))) if place is None and "_orig_mod" in module._modules else place


def _look() -> None:
    global _looked
    with lock:
        moment = _times
        for model in open_ones():
            name(model)
        _looked = moment


def unmatched(names: Iterable[str], since: int) -> list[str]:
    """The names and patterns that no module had in a model that was acted on since a moment."""
    with lock:
        seen = {*(model.paths for model in OPEN), *(paths for paths, moment in _left.items() if moment > since)}
    return [name for name in names if not any(_has(paths, name) for paths in seen)]


@lru_cache(1024)
def _has(paths: frozenset[str], name: str) -> bool:
    return any(fnmatchcase(path, name) for path in paths)

"""The models given to ``ctx.watch(model)``: which of them open contexts watch, and the paths of their modules."""

from __future__ import annotations

import itertools
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn


class Model:
    """A model that was watched.

    Attributes:
        number: its number in the library.
        paths: of all modules that it has had: it may be gone when they are needed.
    """

    def __init__(self, model: nn.Module) -> None:
        self.number = next(_numbers)
        self.paths: frozenset[str] = frozenset()
        gone, known, key = GONE, _known, id(model)  # at the interpreter's end these names are gone
        self.module = weakref.ref(model, lambda _: gone.append(known.pop(key, self)))
        self.places: list[Place] = []
        self._seen: list[Any] = []

    def is_as_it_was(self, model: nn.Module) -> bool:
        """Whether its modules, their names and the places of their weights are those of the last call. It costs a microsecond a
        module, so that a context may watch a model anew in every step.
        """
        before, self._seen = self._seen, _modules_of(model)
        return before == self._seen

    @property
    def is_open(self) -> bool:
        return self in OPEN


def _modules_of(model: nn.Module) -> list[Any]:
    return [(path, weakref.ref(module), *map(_address_of, [*module._parameters.values()])) for path, module in paths_of(model)]


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


def module_at(model: nn.Module, path: str) -> nn.Module | None:
    """The module that :func:`paths_of` finds at a path."""
    return next((module for known, module in paths_of(model) if known == path), None)


def _address_of(parameter: torch.Tensor | None) -> int:
    try:
        return parameter.data_ptr() if parameter is not None else 0
    except (RuntimeError, ValueError):  # no memory of its own; not initialised yet
        return 0


_numbers = itertools.count(1)
_known: dict[int, Model] = {}
"""id of a living model → it. No lock guards it: a finalizer may look for a model in any line."""
OPEN: Counter[Model] = Counter()
"""How many open contexts watch a model."""
GONE: deque[Model] = deque()
"""Those that have died. Garbage collection may report one at any moment: it is forgotten when it is next looked for."""


def record(model: nn.Module) -> Model:
    if (found := _known.get(id(model))) is None:
        found = _known[id(model)] = Model(model)
    return found


def alive() -> list[tuple[Model, nn.Module]]:
    return [(found, model) for found in [*_known.values()] if (model := found.module()) is not None]


def open_ones() -> frozenset[Model]:
    return frozenset([*OPEN])


# --- opening and closing ----------------------------------------------------------------------------------------------

_times = 0
"""How often a model has begun or ceased to be acted on."""
_last_end = 0
"""The last of these times at which one ceased to be."""
_left: dict[frozenset[str], int] = {}
"""Paths of a model → the moment when the last context that watched such a model was left."""
_KEPT = 64


def now() -> int:
    """A moment, for :func:`unmatched`."""
    return _times


def last_end() -> int:
    """The last moment at which a model ceased to be acted on."""
    return _last_end


def begin(model: Model) -> bool:
    """One more open context watches a model; whether it is the first."""
    global _times
    OPEN[model] += 1
    if OPEN[model] > 1:
        return False
    _times += 1
    model.paths = model.paths if model.module() is not None else frozenset()
    return True


def end(model: Model) -> bool:
    """One context fewer watches a model, which may be gone by now; whether it was the last."""
    global _times, _last_end
    OPEN[model] -= 1
    if OPEN[model]:
        return False
    del OPEN[model]
    _times = _last_end = _times + 1
    _left.pop(model.paths, None)
    _left[model.paths] = _times
    if len(_left) > _KEPT:
        _left.pop(next(iter(_left)), None)
    return True


def unmatched(names: Iterable[str], since: int) -> list[str]:
    """The names and patterns that no module had in a model that was watched since a moment."""
    seen = {*(model.paths for model in open_ones()), *(paths for paths, moment in [*_left.items()] if moment > since)}
    return [name for name in names if not any(_has(paths, name) for paths in seen)]


@lru_cache(1024)
def _has(paths: frozenset[str], name: str) -> bool:
    return any(fnmatchcase(path, name) for path in paths)


# --- where a module is ------------------------------------------------------------------------------------------------


class Place(weakref.ref["nn.Module"]):
    """A module of watched models; called, it returns the module.

    Attributes:
        paths: model → the path of the module in it.
        shown: what observers know of it.
    """

    __slots__ = ("key", "paths", "shown")

    def __init__(self, module: nn.Module, ended: Callable[[Place], object]) -> None:
        super().__init__(module, ended)  # type: ignore[call-arg]
        self.key = id(module)
        self.paths: dict[Model, str] = {}
        self.shown: Any = None


_places: dict[int, Place] = {}
"""id of a living module → its place."""
_looked = 0
"""The moment at which the models were last looked at: the first call of a module does that, not the entry of a context."""


def _forget(place: Place, places: dict[int, Place] = _places) -> None:
    places.pop(place.key, None)


def name(model: Model, module: nn.Module) -> None:
    """Note the modules of a model by their paths."""
    found, before = paths_of(module), model.places
    model.paths |= {path for path, _ in found}
    model.places = []
    for path, one in found:
        if (place := _places.get(id(one))) is None:
            place = _places[id(one)] = Place(one, _forget)
        model.places.append(place)
        if place.paths.get(model) != path:
            for gone in [other for other in [*place.paths] if other.module() is None and not other.is_open]:
                place.paths.pop(gone, None)
            place.paths[model] = path
    inside = {place.key for place in model.places}
    for place in before:
        if place.key not in inside:  # it has left the model
            place.paths.pop(model, None)


def place_of(module: nn.Module) -> Place | None:
    """The place of a module of watched models; a wrapper of torch.compile has that of the module that it wraps."""
    if _looked != _times:
        _look()
    place = _places.get(id(module))
    return _places.get(id(unwrapped(module))) if place is None and "_orig_mod" in module._modules else place


def _look() -> None:
    global _looked
    moment = _times
    for model in open_ones():
        if (module := model.module()) is not None:
            name(model, module)
    _looked = moment

"""Names the module whose forward pass runs, for the collector: by its path in a watched model, while it collects."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from msctx import locks
from msctx.memory import watched
from msctx.native import core, models, module_calls
from msctx.observers import scope_names

if TYPE_CHECKING:
    from torch import nn

_lock = locks.reentrant()
_on = False
_known: weakref.WeakKeyDictionary[nn.Module, _Place] = weakref.WeakKeyDictionary()
_looked = -1
"""When the models were looked at: the first call of a module does that, not the entry of a context."""


class _Place:
    """Where a module is, as long as the models are those that were looked at then: *path* is "" for the model itself."""

    def __init__(self, path: str, module: nn.Module) -> None:
        self.looked = -1
        self.path = path
        self.module = _place_of(path or scope_names.of_root(type(module).__name__), module)
        self.name = f"{path}.{type(module).__name__}"
        scope_names.meet(path, module)


class _Entry(NamedTuple):
    place: _Place
    number: int
    before: int | None
    """The library's module until then: in a backward pass, that of the node that calls this one again."""


class _Stack(threading.local):
    def __init__(self) -> None:
        self.entries: list[_Entry] = []


_entered = _Stack()
_numbers = itertools.count()
"""Of the calls of modules."""


_places: defaultdict[str, list[int]] = defaultdict(list)
"""Path → those in the library that stand for it, each for one module: another model may have the same paths."""
_modules: dict[int, weakref.ref[nn.Module]] = {}


def _place_of(path: str, module: nn.Module) -> int:
    """That of a module that is gone is taken again."""
    places = _places[path]
    mine = [place for place in places if _modules[place]() is module] or [
        place for place in places if _modules[place]() is None
    ]
    if not mine:
        mine = [core.load().c.msctx_module(path)]
        places += mine
    _modules[mine[0]] = weakref.ref(module)
    return mine[0]


def module_at(place: int) -> nn.Module | None:
    """The module for which an operator counts; None: none, or it is gone."""
    found = _modules.get(place)
    return None if found is None else found()


def _enter(module: nn.Module, leaves: list[module_calls.Leave]) -> None:
    """In compiled code there is none: see compiled_places.py."""
    if (place := _known_as(module)) is None:
        return
    library = core.load().c
    leaves.append(partial(_leave, len(_entered.entries)))
    _entered.entries.append(_Entry(place, next(_numbers), library.msctx_module_here()))
    library.msctx_enter_module(place.module)


def _leave(depth: int) -> None:
    entries = _entered.entries
    if len(entries) > depth:  # nobody has turned it off meanwhile
        core.load().c.msctx_enter_module(entries[depth].before)
        del entries[depth:]


def root() -> str | None:
    """The path of the module whose forward pass runs in this thread, "": of a model itself; ``None``: there is none with a name."""
    return _entered.entries[-1].place.path if _entered.entries else None


def around() -> list[tuple[int, str]]:
    """The calls of a model's modules that run in this thread, the outermost first: a number that no other has, and ``path.Class``."""
    entries = _entered.entries
    inner = [
        entry for entry, around in zip(entries, [None, *entries], strict=False) if not around or around.place is not entry.place
    ]
    return [(entry.number, entry.place.name) for entry in inner if entry.place.path]  # a wrapper and what it wraps are one


def turn(*, on: bool) -> None:
    """Whether the collector collects."""
    global _on
    with _lock:
        if on == _on:
            return
        _on = on
        module_calls.put(_enter, 1) if on else module_calls.take(_enter)
    if not on:
        _entered.entries.clear()
        core.load().c.msctx_enter_module(None)


_names_all = False
_unwatched: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def name_unwatched() -> None:
    """From now on, a module without a name that is called is a model, whose modules have names, too."""
    global _names_all
    _names_all = True


def _known_as(module: nn.Module) -> _Place | None:
    """A wrapper of torch.compile is what it wraps: torch compiles a call of its own modules with all that is around it."""
    if "_orig_mod" in module._modules:
        module = module._modules["_orig_mod"]  # type: ignore[assignment]
    if _looked != watched.moment():
        _look()
    if (place := _known.get(module)) is not None and place.looked == _looked:
        return place
    if not _names_all or not _on:
        return None
    with _lock:
        _unwatched.add(module)
        _name(module, _looked)
    return _known.get(module)


def _look() -> None:
    global _looked
    moment, found = watched.moment(), watched.models()
    with _lock:
        for model in (*found, *_unwatched):
            _name(model, moment)
        _looked = moment


def _name(model: nn.Module, moment: int) -> None:
    for path, module in models.paths_of(model):
        place = _known.get(module)
        if place is not None and place.looked == moment and (place.path or not path):  # in another model, too
            continue
        if place is None or place.path != path:
            place = _known[module] = _Place(path, module)
        place.looked = moment

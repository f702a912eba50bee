"""Names the module whose forward pass runs, for the collector: by its path in a watched model, while it collects."""

from __future__ import annotations

import weakref
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING

from msctx import locks
from msctx.native import core, models, module_calls
from msctx.observers import scope_names

if TYPE_CHECKING:
    from torch import nn

_lock = locks.reentrant()
_on = False


class _Shown:
    """How a module is shown, as long as the same models are watched: *path* is "" for a model itself."""

    def __init__(self, path: str, module: nn.Module) -> None:
        self.moment = -1
        self.path = path
        self.name = f"{path}.{type(module).__name__}"
        with _lock:
            self.number = _number_of(path or scope_names.of_root(type(module).__name__), module)


_numbers: defaultdict[str, list[int]] = defaultdict(list)
"""Path → the numbers in the library that stand for it, each for one module: another model may have the same paths."""
_modules: dict[int, weakref.ref[nn.Module]] = {}


def _number_of(path: str, module: nn.Module) -> int:
    """The number of a module that is gone is taken again."""
    numbers = _numbers[path]
    mine = [number for number in numbers if _modules[number]() is module] or [
        number for number in numbers if _modules[number]() is None
    ]
    if not mine:
        mine = [core.load().c.msctx_module(path)]
        numbers += mine
    _modules[mine[0]] = weakref.ref(module)
    return mine[0]


def module_at(number: int) -> nn.Module | None:
    """The module for which an operator counts; None: none, or it is gone."""
    found = _modules.get(number)
    return None if found is None else found()


def _enter(module: nn.Module, call: module_calls.Call) -> None:
    """In compiled code this is not called: see compiled_places.py."""
    shown = _shown(call.place)
    if shown is None and _names_all:
        _name(models.unwrapped(module))
        call.place = models.place_of(module)
        shown = _shown(call.place)
    if shown is not None:
        library = core.load().c
        call.leaves.append(partial(library.msctx_enter_module, library.msctx_module_here()))  # a node's, in a backward pass
        library.msctx_enter_module(shown.number)


def _shown(place: models.Place | None) -> _Shown | None:
    """How a module is shown: by its first path in an open model that is not the model itself."""
    if place is None:
        return None
    shown: _Shown | None = place.shown
    if shown is not None and shown.moment == models.now():
        return shown
    paths = [path for model, path in [*place.paths.items()] if model.is_open or model in _unwatched]
    module = place()
    if not paths or module is None:
        return None
    path = next(filter(None, paths), "")
    if shown is None or shown.path != path:
        shown = place.shown = _Shown(path, module)
    shown.moment = models.now()
    return shown


def _running() -> list[tuple[module_calls.Call, _Shown]]:
    return [(call, shown) for call in module_calls.running() if _on and (shown := _shown(call.place)) is not None]


def root() -> str | None:
    """The path of the module whose forward pass runs in this thread, "": of a model itself; ``None``: there is none with a name."""
    running = _running()
    return running[-1][1].path if running else None


def around() -> list[tuple[module_calls.Call, str]]:
    """The calls of a model's modules that run in this thread, the outermost first, and ``path.Class``."""
    found: list[tuple[module_calls.Call, _Shown]] = []
    for call, shown in _running():
        if shown.path and not (found and found[-1][1] is shown):  # a wrapper and the module that it wraps are one
            found.append((call, shown))
    return [(call, shown.name) for call, shown in found]


def turn(*, on: bool) -> None:
    """Whether the collector collects."""
    global _on
    with _lock:
        if on == _on:
            return
        _on = on
        if on:
            module_calls.put(_enter, 1, all_modules=_names_all)
        else:
            module_calls.take(_enter)
    if not on:
        core.load().c.msctx_enter_module(None)


_names_all = False
_unwatched: weakref.WeakSet[models.Model] = weakref.WeakSet()


def name_unwatched() -> None:
    """From the next :func:`turn` on, a module without a name that is called is a model, whose modules have names, too."""
    global _names_all
    _names_all = True


def _name(module: nn.Module) -> None:
    _unwatched.add(model := models.record(module))
    models.name(model, module)

"""Where operators come from: names of modules, also in dumps and profiles.

A path in a watched model (``net.fc``) is written ``Default/net-Net/fc-Linear``, or without classes ``Default/net/fc``.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import fx, nn
from torch.profiler import record_function

from msctx.native import core, module_tracker, watched_models
from msctx.observers.slots_and_files import OfThread

_KEY = re.compile(r"\[['\"]?([^\]'\"]*)['\"]?\]")


def modules_around(node: fx.Node) -> list[str]:
    """The paths of the modules around a node, the innermost first: of ``L['m']._modules['layers'][0]`` ``layers.0``."""
    names = [_KEY.sub(r".\1", name).split(".")[2:] for name, _ in (node.meta.get("nn_module_stack") or {}).values()]
    return [".".join(part for part in parts if part not in ("", "_modules", "_orig_mod")) for parts in reversed(names)]


# --- names of modules: of the one whose forward pass runs, for the collector --------------------------------------------

_lock = threading.RLock()
_on = False
_enter_module: Any = None
"""The library's."""


class _Shown:
    """How a module is shown: *path* is "" for a model itself."""

    def __init__(self, path: str, module: nn.Module) -> None:
        self.path = path
        self.name = f"{path}.{type(module).__name__}"
        with _lock:
            self.number = _number_of(path or of_root(type(module).__name__), module)


_numbers: defaultdict[str, list[int]] = defaultdict(list)
"""Path → the numbers in the library that stand for it, each for one module: another model may have the same paths."""
_modules: dict[int, weakref.ref[nn.Module]] = {}


def _number_of(path: str, module: nn.Module) -> int:
    """A number of this path; that of a module that is gone is taken again."""
    for number in _numbers[path]:
        if _modules[number]() in (module, None):
            break
    else:
        number = core.load().c.msctx_text(path.encode())
        _numbers[path].append(number)
    _modules[number] = weakref.ref(module)
    return number


def module_at(number: int) -> nn.Module | None:
    """The module for which an operator counts; None: none, or it is gone."""
    found = _modules.get(number)
    return None if found is None else found()


def _enter(module: nn.Module, call: module_tracker.Call) -> None:
    """In compiled code this is not called."""
    shown = _shown(call.place)
    if shown is None and _names_all:
        _unwatched.add(model := watched_models.record(watched_models.unwrapped(module)))
        watched_models.look([model])
        call.place = watched_models.place_of(module)
        shown = _shown(call.place)
    if shown is not None:
        call.leaves.append((_enter_module, _enter_module(shown.number)))  # in a backward pass, a node has one


def _shown(place: watched_models.Place | None) -> _Shown | None:
    """How a module is shown: by its first path in an open model that is not the model itself."""
    if place is None:
        return None
    if place.moment != (moment := watched_models.times):
        paths = [path for model, path in [*place.paths.items()] if model in watched_models.OPEN or model in _unwatched]
        module, path = place.module(), next(filter(None, paths), "")
        if not paths or module is None:
            place.shown = None
        elif place.shown is None or place.shown.path != path:
            place.shown = _Shown(path, module)
        place.moment = moment
    shown: _Shown | None = place.shown
    return shown


def around() -> list[tuple[module_tracker.Call, str]]:
    """The calls of a model's modules that run in this thread, the outermost first, and ``path.Class``."""
    found: list[tuple[module_tracker.Call, _Shown]] = []
    for call in module_tracker.here.calls if _on else ():
        shown = _shown(call.place)
        if shown is not None and shown.path and not (found and found[-1][1] is shown):  # a wrapper and its module are one
            found.append((call, shown))
    return [(call, shown.name) for call, shown in found]


def turn(*, on: bool) -> None:
    """Whether the collector collects."""
    global _on, _enter_module
    with _lock:
        if on == _on:
            return
        _on, _enter_module = on, core.load().c.msctx_enter_module
        module_tracker.turn(_enter, on, 1, all_modules=_names_all)
    if not on:
        _enter_module(None)


_names_all = False
_unwatched: weakref.WeakSet[watched_models.Model] = weakref.WeakSet()


def name_unwatched() -> None:
    """From the next :func:`turn` on, a module without a name that is called is a model, whose modules have names, too."""
    global _names_all
    _names_all = True


# --- how names are written ----------------------------------------------------------------------------------------------


CLASSES = OfThread(True)
"""Whether names have classes, a matter of each thread as in MindSpore."""
_ROOT = " (root)"


def of_root(name: str) -> str:
    """What stands for a model itself, in the place of a path, by the name of its class."""
    return f"{name}{_ROOT}"


@lru_cache(1)
def _classes(moment: int) -> dict[str, set[str]]:
    """Path → the classes that watched models have there: those that are acted on, else those of contexts that were left."""
    found: dict[bool, defaultdict[str, set[str]]] = {is_open: defaultdict(set) for is_open in (False, True)}
    for model in [*watched_models.KNOWN]:
        for path, reference, _ in model.found:
            if (module := reference()) is not None:
                found[model in watched_models.OPEN][path].add(class_of(module))
    return found[False] | found[True]


def class_of(module: nn.Module) -> str:
    return type(module).__name__ if type(module).forward is not nn.Module.forward else ""


def parts(path: str) -> list[str]:
    """``net.fc`` → Default, net-Net, fc-Linear; of a model itself → Default. No class: models have several there, or a container
    that is never called."""
    classes = _classes(watched_models.times) if CLASSES.is_on() else {}

    def class_at(at: str) -> str:
        return next(iter(found)) if len(found := classes.get(at, ())) == 1 else ""

    return ["Default", *_named("" if path.endswith(_ROOT) else path, class_at)]


def in_model(model: nn.Module, *, classes: bool) -> dict[nn.Module, str]:
    """Each module → ``Default/net-Net/fc-Linear``."""
    paths = {module: path.removesuffix("_orig_mod").removesuffix(".") for path, module in watched_models.paths_of(model)}
    by_path = {path: class_of(module) for module, path in paths.items()}
    name = by_path.__getitem__ if classes else lambda _: ""
    return {module: "/".join(["Default", *_named(path, name)]) for module, path in paths.items()}


def _named(path: str, class_at: Callable[[str], str]) -> Iterator[str]:
    keys = [*filter(None, path.split("."))]
    for end, key in enumerate(keys, 1):
        kind = class_at(".".join(keys[:end]))
        yield f"{key}-{kind}" if kind else key


# --- ranges in profiles -------------------------------------------------------------------------------------------------


class _Ranges(threading.local):
    def __init__(self) -> None:
        self.open: list[record_function] = []
        self.names: dict[nn.Module, str] = {}


class ModuleRanges:
    """What compiled code calls has no range: the module that it belongs to has."""

    def __init__(self, *, classes: bool) -> None:
        self._classes = classes
        self._here = _Ranges()

    def begin(self) -> None:
        module_tracker.turn(self._enter, True, 2)

    def end(self) -> None:
        module_tracker.turn(self._enter, False)

    def _enter(self, module: nn.Module, call: module_tracker.Call) -> None:
        here = self._here
        if not torch.autograd.profiler._is_profiler_enabled:
            return
        if not here.open:
            here.names = in_model(module, classes=self._classes)
        name = here.names.get(module, type(module).__name__)
        if not here.open or name != here.open[-1].name:  # else it is torch.compile's wrapper of the same
            call.leaves.append((self._leave, len(here.open)))
            here.open.append(record_function(name))
            here.open[-1].__enter__()

    def _leave(self, depth: int) -> None:
        while len(self._here.open) > depth:
            self._here.open.pop().__exit__(None, None, None)
        if not self._here.open:
            self._here.names = {}

"""Names the module whose forward pass runs, for the collector: hooks on the modules of watched models, while it collects."""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import unwrap
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import _C
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.compiler import is_compiling
from torch.utils._python_dispatch import _disable_current_modes

from msctx import locks
from msctx.memory import watched
from msctx.native import core, models
from msctx.native.module_hooks import Hooks, keep_from_dynamo
from msctx.observers import scope_names

if TYPE_CHECKING:
    from torch import nn

_lock = locks.reentrant()
_on = False
_known: weakref.WeakKeyDictionary[nn.Module, _Hooks] = weakref.WeakKeyDictionary()
_hooked: weakref.WeakKeyDictionary[nn.Module, list[_Hooks]] = weakref.WeakKeyDictionary()
"""Model → the hooks that it has now."""


class _Entry(NamedTuple):
    hooks: _Hooks
    before: int | None
    call: FrameType
    """Torch's call of the module: after Ctrl-C torch calls no hook when it ends."""
    number: int


class _Stack(threading.local):
    def __init__(self) -> None:
        self.entries: list[_Entry] = []


_entered = _Stack()
_numbers = itertools.count()
"""Of the calls of modules."""


class _Hooks(Hooks):
    """Of one module. In compiled code none runs: see compiled_places.py."""

    def __init__(self, path: str, module: nn.Module) -> None:
        super().__init__(module, _enter, _leave)
        self.call(path, module)

    def call(self, path: str, module: nn.Module) -> None:
        """From now on by this path, "": it is the model itself."""
        self.path = path
        self.module = _place_of(path or scope_names.of_root(type(module).__name__), module)
        self.name = f"{path}.{type(module).__name__}"
        scope_names.meet(path, module)


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


def _enter(hooks: _Hooks, module: nn.Module, args: Any) -> None:
    if not is_compiling():
        _begin(hooks, sys._getframe(1))


def _begin(hooks: _Hooks, call: FrameType) -> None:
    entries = _entered.entries
    while entries and not _is_running(entries[-1].call):
        core.load().c.msctx_enter_module(entries.pop().before)
    entries.append(_Entry(hooks, core.load().c.msctx_enter_module(hooks.module), call, next(_numbers)))


@contextmanager
def called(module: nn.Module) -> Iterator[None]:
    """A call of a module whose hooks do not run, for it is compiled."""
    hooks = _known.get(module) if _on and not is_compiling() else None
    if hooks is None or not hooks.are_needed:
        yield
        return
    _begin(hooks, sys._getframe())
    try:
        yield
    finally:
        _end(hooks)


def root() -> str | None:
    """The path of the module whose forward pass runs in this thread, "": of a model itself; ``None``: there is none with a name."""
    return _entered.entries[-1].hooks.path if _entered.entries else None


def around() -> list[tuple[int, str]]:
    """The calls of a model's modules that run in this thread, the outermost first: a number that no other has, and ``path.Class``."""
    return [(entry.number, entry.hooks.name) for entry in _entered.entries if entry.hooks.path]


def _is_running(call: FrameType) -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not call:
        frame = frame.f_back
    return frame is not None


def _leave(hooks: _Hooks, module: nn.Module, args: Any, result: Any) -> None:
    if not is_compiling():
        _end(hooks)


def _end(hooks: _Hooks) -> None:
    if any(one.hooks is hooks for one in _entered.entries):  # another hook may have raised before ours
        while (entry := _entered.entries.pop()).hooks is not hooks:
            pass
        core.load().c.msctx_enter_module(entry.before)


for _function in (unwrap(called), _begin, _end, _is_running):
    keep_from_dynamo(_function.__code__)


def turn(*, on: bool) -> None:
    """Whether the collector collects."""
    global _on
    with _lock:
        if on == _on:
            return
        _on = on
    for model in watched.models() if on else [*_hooked]:  # whoever watches one holds its lock, and waits for ours
        (_hook if on else _unhook)(model)
    if not on:
        _entered.entries.clear()
        core.load().c.msctx_enter_module(None)


def name_unwatched(met: Callable[[nn.Module], object]) -> None:
    """Name the modules of models that nobody watches, too, from now on: a module without a name that is called is such a model.

    *met* is called with each before its first forward pass.
    """
    from torch.nn.modules.module import register_module_forward_pre_hook

    met_ones: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def look(module: nn.Module, args: Any) -> None:
        if not is_compiling() and not _has_name(module) and module not in met_ones:
            met_ones.add(module)
            _hook(module)
            with _outside_transforms():
                met(module)
            if _has_name(module):
                _begin(_known[module], sys._getframe(1))  # torch has read its hooks already

    register_module_forward_pre_hook(look)


@contextmanager
def _outside_transforms() -> Iterator[None]:
    """What we compute of a module is no part of what ``torch.func`` or ``torch.jit.trace`` makes of the program."""
    put: Callable[[object], None] = _C._set_tracing_state  # type: ignore[attr-defined]
    traced = _C._get_tracing_state()
    put(None)
    try:
        with temporarily_clear_interpreter_stack(), _disable_current_modes():
            yield
    finally:
        put(traced)


def _has_name(module: nn.Module) -> bool:
    return (hooks := _known.get(module)) is not None and hooks.are_needed


def _hook(model: nn.Module) -> None:
    with _lock:
        if not _on or model in _hooked:
            return
        found = [_hooks_of(module, path) for path, module in models.paths_of(model)]
        _hooked[model] = [hooks for hooks in found if hooks is not None]
        for hooks in _hooked[model]:
            hooks.want(1)


def _hooks_of(module: nn.Module, path: str) -> _Hooks | None:
    hooks = _known.get(module)
    if hooks is None and not hasattr(module, "graph"):  # scripted modules take no hooks of Python's
        hooks = _known[module] = _Hooks(path, module)
    if hooks is not None and hooks.path != path and not (hooks.are_needed and hooks.path):  # for another model
        hooks.call(path, module)
    return hooks


def _unhook(model: nn.Module) -> None:
    with _lock:
        for hooks in _hooked.pop(model, ()):
            hooks.want(-1)


watched.listen(_hook, _unhook)

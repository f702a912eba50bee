"""Policies inside modules: hooks on the watched modules that rules name, as long as such a policy is in force somewhere.

The hooks run outside compiled code: Dynamo breaks its graph at a named module, whose forward pass is then compiled for itself,
guarded by the policy inside it.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from msctx.dynamo import outside_dynamo

if TYPE_CHECKING:
    from torch import nn

Enter = Callable[[str], "int | None"]

_lock = threading.RLock()
_watched: dict[tuple[int, str], tuple[weakref.ref[nn.Module], str]] = {}
"""(id of a module, its path) → the module."""
_wanted: Counter[str] = Counter()
"""Name or pattern of a path → how many policies in force have it."""
_handles: dict[tuple[int, str], tuple[Any, ...]] = {}
_generation = 0


class _Entered(threading.local):
    def __init__(self) -> None:
        self.before: list[int | None] = []


_entered = _Entered()


def watch(model: nn.Module) -> None:
    with _lock:
        for path, module in model.named_modules():
            key = (id(module), path.replace("_orig_mod.", ""))
            _watched[key] = (weakref.ref(module, lambda _, key=key: _forget(key)), key[1])
        before = _generation
        _attach()
    if _generation != before:
        from msctx.native import precision

        precision.enter_again()


def want(names: Iterable[str]) -> None:
    """Rules for these names are in force in one more thread."""
    with _lock:
        _wanted.update(names)
        _attach()


def release(names: Iterable[str]) -> None:
    with _lock:
        _wanted.subtract(names)
        for name in [name for name, count in _wanted.items() if count <= 0]:
            del _wanted[name]
        for key in [key for key in _handles if not _match(key[1], _wanted)]:
            for handle in _handles.pop(key):
                handle.remove()


def without_module(names: Iterable[str]) -> list[str]:
    """Those that no watched module has."""
    with _lock:
        return [name for name in names if not any(fnmatchcase(path, name) for _, path in list(_watched))]


def _match(path: str, names: Iterable[str]) -> str | None:
    """The name that speaks of a path: it itself, else the first pattern."""
    names = [*names]
    return path if path in names else next((name for name in names if fnmatchcase(path, name)), None)


def generation() -> int:
    """How often modules were named anew while rules for them were in force."""
    return _generation


def _attach() -> None:
    global _generation
    attached = False
    for key, (reference, path) in list(_watched.items()):
        module = reference()
        if module is not None and key not in _handles and _match(path, _wanted):
            _handles[key] = _hooks(module, path)
            attached = True
    if attached:
        _generation += 1


class _Enter:
    """A hook that can be pickled with its module."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, *_: Any) -> None:
        _enter(self.path)


class _Leave(_Enter):
    def __call__(self, *_: Any) -> None:
        _leave()


@outside_dynamo
def _enter(path: str) -> None:
    from msctx.native import precision

    number = precision.inside(lambda names: _match(path, names))
    _entered.before.append(None if number is None else precision.switch(number))


@outside_dynamo
def _leave() -> None:
    from msctx.native import precision

    if _entered.before and (before := _entered.before.pop()) is not None:
        precision.switch(before)


def _hooks(module: nn.Module, path: str) -> tuple[Any, ...]:
    return module.register_forward_pre_hook(_Enter(path)), module.register_forward_hook(_Leave(path), always_call=True)


def _forget(key: tuple[int, str]) -> None:
    _watched.pop(key, None)
    _handles.pop(key, None)

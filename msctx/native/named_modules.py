"""Policies inside modules: hooks on the watched modules that rules name, as long as such a policy is in force somewhere.

The hooks run outside compiled code: Dynamo breaks its graph at a named module, whose forward pass is then compiled for itself,
guarded by the policy inside it. Dynamo itself sees where there are hooks: see hook_guards.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from msctx.dynamo import outside_dynamo
from msctx.native import hook_guards
from msctx.native.holders import at_work

if TYPE_CHECKING:
    from torch import nn

_watched: weakref.WeakKeyDictionary[nn.Module, dict[str, _Hooks]] = weakref.WeakKeyDictionary()
"""Module → path that it is watched by → its hooks there. A module may go at any time: this keeps an iteration safe from that."""
_by_name: dict[str, list[tuple[weakref.ref[nn.Module], _Hooks]]] = {}
"""Name or pattern → what it names, of those that were asked for since a model was watched."""
_wanted: Counter[str] = Counter()
"""Name or pattern of a path → how many policies in force have it."""


class _Enter:
    """A hook that can be pickled with its module."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, *_: Any) -> None:
        _enter(self.path)


class _Leave(_Enter):
    def __call__(self, *_: Any) -> None:
        _leave()


class _Hooks:
    """The hooks of a module at a path: there while at least one name is wanted that means it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._enter, self._leave = _Enter(path), _Leave(path)
        self._names = 0
        self._keys: tuple[int, int] | None = None

    def want(self, module: nn.Module, names: int) -> None:
        """Registered by torch's own functions once; put and taken away by hand at each entry, which is six times as fast."""
        had, self._names = self._names, self._names + names
        if bool(had) == bool(self._names):
            return
        if self._keys is None:
            entering = module.register_forward_pre_hook(self._enter)
            self._keys = entering.id, module.register_forward_hook(self._leave, always_call=True).id
            return
        first, after = self._keys
        if self._names:
            module._forward_pre_hooks[first] = self._enter
            module._forward_hooks[after] = self._leave
            module._forward_hooks_always_called[after] = True
        else:
            for hooks, key in (
                (module._forward_pre_hooks, first),
                (module._forward_hooks, after),
                (module._forward_hooks_always_called, after),
            ):
                hooks.pop(key, None)  # somebody may have taken them all away


class _Entered(threading.local):
    def __init__(self) -> None:
        self.before: list[int | None] = []


_entered = _Entered()


def watch(model: nn.Module) -> None:
    with at_work.lock:
        for path, module in model.named_modules():
            path = path.replace("_orig_mod.", "")
            paths = _watched.setdefault(module, {})
            if path in paths:
                continue
            paths[path] = hooks = _Hooks(path)
            _by_name.clear()
            if names := sum(fnmatchcase(path, name) for name in _wanted):
                hooks.want(module, names)
                hook_guards.renew()
    at_work.tidy()


def want(names: Iterable[str]) -> None:
    """Rules for these names are in force in one more thread. The caller is at work: see holders; so is that of release."""
    for name in names:
        _wanted[name] += 1
        if _wanted[name] == 1:
            for module, hooks in _named(name):
                hooks.want(module, 1)


def release(names: Iterable[str]) -> None:
    for name in names:
        _wanted[name] -= 1
        if not _wanted[name]:
            del _wanted[name]
            for module, hooks in _named(name):
                hooks.want(module, -1)


def _named(name: str) -> Iterator[tuple[nn.Module, _Hooks]]:
    """The modules that a name or pattern means. All that are watched are looked at once, not at each entry."""
    if (found := _by_name.get(name)) is None:
        if len(_by_name) >= 1024:
            _by_name.clear()
        found = _by_name[name] = [
            (weakref.ref(module), hooks)
            for module, paths in _watched.items()
            for path, hooks in paths.items()
            if fnmatchcase(path, name)
        ]
    for reference, hooks in found:
        if (module := reference()) is not None:
            yield module, hooks


def without_module(names: Iterable[str]) -> list[str]:
    """Those that no watched module has."""
    with at_work.lock:
        found = [name for name in names if not any(_named(name))]
    at_work.tidy()
    return found


def _match(path: str, names: Iterable[str]) -> str | None:
    """The name that speaks of a path: it itself, else the first pattern."""
    names = [*names]
    return path if path in names else next((name for name in names if fnmatchcase(path, name)), None)


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

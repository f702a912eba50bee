"""Policies inside modules: hooks on the watched modules that rules name, as long as such a policy is in force somewhere and a context
that watches the model is open.

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


class Model:
    """A watched model: which of its modules a name means."""

    def __init__(self) -> None:
        self._hooks: weakref.WeakKeyDictionary[nn.Module, _Hooks] = weakref.WeakKeyDictionary()
        """A module may go at any time: this keeps an iteration safe from that."""
        self._by_name: dict[str, list[tuple[weakref.ref[nn.Module], _Hooks]]] = {}
        """Name or pattern → what it means, of those that were asked for since there are these modules."""
        self.is_open = False
        """Whether an open context watches it: rules act on it."""
        self.left = -1
        """The moment when the last context that watched it was left, in the count of memory.watched."""

    def look_at(self, model: nn.Module) -> None:
        for path, module in model.named_modules():
            path = path.replace("_orig_mod.", "")
            found = self._hooks.get(module)
            if found is not None and found.path == path:
                continue
            if found is not None:
                found.drop(module)
            self._hooks[module] = hooks = _Hooks(path, self)
            self._by_name.clear()
            if self in _held and (names := sum(fnmatchcase(path, name) for name in _wanted)):
                hooks.want(module, names)
                hook_guards.renew()

    def named(self, name: str) -> Iterator[tuple[nn.Module, _Hooks]]:
        """The modules that a name or pattern means. All of them are looked at once, not at each entry."""
        if (found := self._by_name.get(name)) is None:
            if len(self._by_name) >= 1024:
                self._by_name.clear()
            found = self._by_name[name] = [
                (weakref.ref(module), hooks) for module, hooks in self._hooks.items() if fnmatchcase(hooks.path, name)
            ]
        for reference, hooks in found:
            if (module := reference()) is not None:
                yield module, hooks


_models: weakref.WeakKeyDictionary[nn.Module, Model] = weakref.WeakKeyDictionary()
_open: dict[int, Model] = {}
"""Number of a model → what is known of it, while a context that watches it is open."""
_held: Counter[Model] = Counter()
"""Model → who needs its hooks: the contexts, and each checkpoint of a forward pass that was made when rules acted on it."""
_wanted: Counter[str] = Counter()
"""Name or pattern of a path → how many policies in force have it."""


class _Enter:
    """A hook of a watched model's module. In a copy or a pickle of the module it does nothing: nobody watches that."""

    def __init__(self, path: str = "", model: Model | None = None) -> None:
        self.path, self.model = path, model

    def __reduce__(self) -> tuple[type[_Enter], tuple[()]]:
        return type(self), ()

    def __call__(self, *_: Any) -> None:
        if self.model is not None:
            _enter(self.path, self.model)


class _Leave(_Enter):
    def __call__(self, *_: Any) -> None:
        if self.model is not None:
            _leave()


class _Hooks:
    """The hooks of a module of a model: there while the model is held and at least one name is wanted that means the module."""

    def __init__(self, path: str, model: Model) -> None:
        self.path = path
        self._enter, self._leave = _Enter(path, model), _Leave(path, model)
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

    def drop(self, module: nn.Module) -> None:
        self.want(module, -self._names)


class _Entered(threading.local):
    def __init__(self) -> None:
        self.before: list[int | None] = []


_entered = _Entered()


def watch(model: nn.Module) -> None:
    with at_work.lock:
        _models.setdefault(model, Model()).look_at(model)
    at_work.tidy()


def turn(number: int, model: nn.Module | None, *, on: bool, moment: int) -> None:
    """Whether a context that watches a model is open; the model may be gone by now."""
    with at_work.lock:
        if on and model is not None:
            _open[number] = found = _models[model]
            found.is_open = True
            want((), [found])
        elif not on and (closed := _open.pop(number, None)) is not None:
            closed.is_open, closed.left = False, moment
            release((), [closed])
    at_work.tidy()


def open_models() -> frozenset[Model]:
    return frozenset([*_open.values()])


def want(names: Iterable[str], models: Iterable[Model] = ()) -> None:
    """Rules for these names are in force in one more thread, or one more holds these models. The caller is at work: see holders; so
    is that of release.
    """
    for name in names:
        _wanted[name] += 1
        if _wanted[name] == 1:
            _hook([name], _held, 1)
    for model in models:
        _held[model] += 1
        if _held[model] == 1:
            _hook(_wanted, [model], 1)


def release(names: Iterable[str], models: Iterable[Model] = ()) -> None:
    for name in names:
        _wanted[name] -= 1
        if not _wanted[name]:
            del _wanted[name]
            _hook([name], _held, -1)
    for model in models:
        _held[model] -= 1
        if not _held[model]:
            del _held[model]
            _hook(_wanted, [model], -1)


def _hook(names: Iterable[str], models: Iterable[Model], count: int) -> None:
    found = [named for model in models for name in names for named in model.named(name)]
    for module, hooks in found:
        hooks.want(module, count)
    if found and count > 0:
        hook_guards.renew()


def without_module(names: Iterable[str], since: int) -> list[str]:
    """Those that no model has on which rules have acted since a moment."""
    with at_work.lock:
        models = {*_open.values(), *(model for model in _models.values() if model.left > since)}
        found = [name for name in names if not any(any(True for _ in model.named(name)) for model in models)]
    at_work.tidy()
    return found


def _match(path: str, names: Iterable[str]) -> str | None:
    """The name that speaks of a path: it itself, else the first pattern."""
    names = [*names]
    return path if path in names else next((name for name in names if fnmatchcase(path, name)), None)


@outside_dynamo
def _enter(path: str, model: Model) -> None:
    from msctx.native import precision

    number = precision.inside(model, lambda names: _match(path, names))
    _entered.before.append(None if number is None else precision.switch(number))


@outside_dynamo
def _leave() -> None:
    from msctx.native import precision

    if _entered.before and (before := _entered.before.pop()) is not None:
        precision.switch(before)

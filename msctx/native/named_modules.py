"""Policies inside modules: hooks on the watched modules that rules name, as long as such a policy is in force somewhere and a context
that watches the model is open.

The hooks run outside compiled code: Dynamo breaks its graph at a named module, whose forward pass is then compiled for itself,
guarded by the policy inside it. Dynamo itself sees where there are hooks: see hook_guards.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import Counter
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import lru_cache
from types import FrameType
from typing import TYPE_CHECKING, Any

from msctx.dynamo import call_outside, untraced
from msctx.native import hook_guards, models, precision
from msctx.native.installed import at_work
from msctx.native.models import Model
from msctx.native.module_hooks import Hooks
from msctx.signals import begins_with_try, uninterrupted

if TYPE_CHECKING:
    from torch import nn


class _Hooked:
    """The hooks of a model's modules, by their names."""

    def __init__(self) -> None:
        self.by_module: weakref.WeakKeyDictionary[nn.Module, _Hooks] = weakref.WeakKeyDictionary()
        """A module may go at any time: this keeps an iteration safe from that."""
        self._by_name: dict[str, list[_Hooks]] = {}
        """Name or pattern → what it means, of those that were asked for since there are these modules."""

    def look_at(self, model: Model, module: nn.Module) -> None:
        modules = models.paths_of(module)
        model.paths |= {path for path, _ in modules}
        for path, one in modules:
            found = self.by_module.get(one)
            if found is not None and found.path == path:
                continue
            if found is not None:
                found.drop()
            self.by_module[one] = hooks = _Hooks(path, model, one)
            self._by_name.clear()
            if model in _held and (names := sum(fnmatchcase(path, name) for name in _wanted)):
                hooks.want(names)
                hook_guards.renew()

    def named(self, name: str) -> list[_Hooks]:
        """The modules that a name or pattern means. All of them are looked at once, not at each entry."""
        if (found := self._by_name.get(name)) is None:
            if len(self._by_name) >= 1024:
                self._by_name.clear()
            found = self._by_name[name] = [hooks for hooks in self.by_module.values() if fnmatchcase(hooks.path, name)]
        return found


_hooked: weakref.WeakKeyDictionary[Model, _Hooked] = weakref.WeakKeyDictionary()
_left: dict[frozenset[str], int] = {}
"""Paths of a model → the moment when the last context that watched such a one was left, in the count of memory.watched."""
_KEPT = 64
_held: Counter[Model] = Counter()
"""Model → who needs its hooks: the contexts, and each checkpoint of a forward pass that was made when rules acted on it."""
_wanted: Counter[str] = Counter()
"""Name or pattern of a path → how many policies in force have it."""


@untraced
@begins_with_try
def _on_entry(hooks: _Hooks, *_: Any) -> None:
    try:
        call_outside(_enter, hooks)
    except BaseException:  # of the handler of a signal
        _on_leaving(hooks)
        raise


@untraced
@begins_with_try
def _on_leaving(hooks: _Hooks, *_: Any) -> None:
    try:
        call_outside(_leave, hooks)
    except BaseException:  # torch does not call it again
        if any(entry.hooks is hooks for entry in _entered.stack):
            _on_leaving(hooks)
        raise


class _Entry:
    """A forward pass that has come to a named module: what it put in force there, and what was before."""

    def __init__(self, hooks: _Hooks, number: int) -> None:
        self.hooks, self.number = hooks, number
        self.policies = precision.here.policies
        self.before = -1
        self.call = sys._getframe()
        while self.call.f_code is not sys.modules["torch"].nn.Module._call_impl.__code__ and self.call.f_back is not None:
            self.call = self.call.f_back

    @property
    def is_running(self) -> bool:
        """Whether its call, or where that is compiled code one around it, has not ended: torch calls no hook after Ctrl-C."""
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame is not self.call:
            frame = frame.f_back
        return frame is not None


class _Hooks(Hooks):
    """The hooks of a module of a model: there while the model is held and at least one name is wanted that means the module; and
    until the forward passes that have entered it have left it, in whichever thread.
    """

    def __init__(self, path: str, model: Model, module: nn.Module) -> None:
        super().__init__(module, _on_entry, _on_leaving)
        self.path, self.model = path, model
        self.inside: weakref.WeakSet[_Entry] = weakref.WeakSet()
        """They belong to their threads: those of one that ends go with it."""

    @property
    def are_needed(self) -> bool:
        return super().are_needed or bool(self.inside)


class _Entered(threading.local):
    def __init__(self) -> None:
        self.stack: list[_Entry] = []


_entered = _Entered()


def watch(model: Model, module: nn.Module) -> None:
    with at_work.lock:
        _hooked.setdefault(model, _Hooked()).look_at(model, module)
    at_work.tidy()


def turn(model: Model, *, on: bool, moment: int) -> None:
    """Whether a context that watches a model is open; the model may be gone by now."""
    with at_work.lock:
        if on:
            model.paths = model.paths if model.module() is not None else frozenset()
            want((), [model])
        else:
            _left.pop(model.paths, None)
            _left[model.paths] = moment
            if len(_left) > _KEPT:
                del _left[next(iter(_left))]
            release((), [model])
    at_work.tidy()


def want(names: Iterable[str], models: Iterable[Model] = ()) -> None:
    """Rules for these names are in force in one more thread, or one more holds these models. The caller holds the lock of at_work;
    so does that of release.
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
    found = [named for model in models for name in names for named in _hooked[model].named(name)]
    for hooks in found:
        hooks.want(count)
    if found and count > 0:
        hook_guards.renew()


def without_module(names: Iterable[str], since: int) -> list[str]:
    """Those that no model has on which rules have acted since a moment."""
    with at_work.lock:
        seen = {
            *(model.paths for model in models.open_ones()),
            *(paths for paths, moment in _left.items() if moment > since),
        }
        found = [name for name in names if not any(_has(paths, name) for paths in seen)]
    at_work.tidy()
    return found


@lru_cache(1024)
def _has(paths: frozenset[str], name: str) -> bool:
    return any(fnmatchcase(path, name) for path in paths)


def _match(path: str, names: Iterable[str]) -> str | None:
    """The name that applies to a path: it itself, else the first pattern."""
    names = [*names]
    return path if path in names else next((name for name in names if fnmatchcase(path, name)), None)


def _enter(hooks: _Hooks) -> None:
    while _entered.stack and not _entered.stack[-1].is_running:
        _leave_last()
    number = precision.inside(hooks.model, lambda names: _match(hooks.path, names))
    if number is None:
        return
    entry = _Entry(hooks, number)
    with uninterrupted():
        with at_work.lock:
            hooks.inside.add(entry)
            hooks.want(0)  # another thread may have taken them away since torch has read them
        at_work.tidy()
        entry.before = precision.switch(number)
        _entered.stack.append(entry)


def _leave(hooks: _Hooks) -> None:
    """Leave this module, if it was entered: its hooks may have come meanwhile."""
    with uninterrupted():
        if any(entry.hooks is hooks for entry in _entered.stack):
            while _leave_last() is not hooks:
                pass


def _leave_last() -> _Hooks:
    """Put back what was in force before the last module was entered, unless somebody else has put something in force since."""
    entry = _entered.stack.pop()
    if (found := precision.switch(entry.before)) != entry.number:
        precision.switch(found)
    _release(entry)
    return entry.hooks


def inside(policies: precision.Policies) -> int | None:
    """What these policies come to in the module whose forward pass is running, if it was entered under them: a context of its own
    may have been left there."""
    entry = next((entry for entry in reversed(_entered.stack) if entry.is_running), None)
    return entry.number if entry is not None and entry.policies == policies else None


def leave_ended() -> None:
    """No policy is in force in this thread: leave all but the calls that are known to run. The caller holds the lock of at_work."""
    running = [entry for entry in _entered.stack if entry.call.f_back is not None and entry.is_running]
    for entry in _entered.stack:
        if entry not in running:
            _release(entry)
    _entered.stack[:] = running


def _release(entry: _Entry) -> None:
    """Its module needs no hooks for it. Torch may be going through them: whoever is at work next takes them away."""
    hooks = entry.hooks
    hooks.inside.discard(entry)
    if not hooks.are_needed:
        at_work.put_off(lambda: hooks.want(0))

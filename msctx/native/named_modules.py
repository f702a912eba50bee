"""Policies inside modules: in the calls of the watched modules that rules name, as long as such a policy is in force somewhere.

They come into force outside compiled code: Dynamo breaks its graph at a named module. If its class is not torch's own, its forward
pass is compiled for itself, guarded by the policy inside it; torch's own modules run eagerly.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from msctx import notices
from msctx.native import models, module_calls, precision
from msctx.native.installed import Held, at_work
from msctx.native.models import Model
from msctx.signals import uninterrupted

if TYPE_CHECKING:
    from torch import nn

_places: weakref.WeakKeyDictionary[nn.Module, dict[Model, str]] = weakref.WeakKeyDictionary()
"""A module of watched models → its paths there."""
_left: dict[frozenset[str], int] = {}
"""Paths of a model → the moment when the last context that watched such a one was left, in the count of memory.watched."""
_KEPT = 64


class _Entry:
    """The call of a named module that runs: what it put in force, and what was before."""

    def __init__(self, module: nn.Module, number: int) -> None:
        self.module, self.number = module, number
        self.policies = precision.here.policies
        self.before = precision.switch(number)


class _Entered(threading.local):
    def __init__(self) -> None:
        self.stack: list[_Entry] = []


_entered = _Entered()


def watch(model: Model, module: nn.Module) -> None:
    with at_work.lock:
        found = models.paths_of(module)
        model.paths |= {path for path, _ in found}
        inside = {id(one) for _, one in found}
        for one, places in [*_places.items()]:
            if model in places and id(one) not in inside:  # it has left the model
                del places[model]
        for path, one in found:
            if (known := _places.setdefault(one, {})).get(model) != path:
                for gone in [other for other in known if other.module() is None and not other.is_open]:
                    del known[gone]
                known[model] = path
    at_work.tidy()


def turn(model: Model, *, on: bool, moment: int) -> None:
    """Whether a context that watches a model is open; the model may be gone by now."""
    with at_work.lock:
        if on:
            model.paths = model.paths if model.module() is not None else frozenset()
        else:
            _left.pop(model.paths, None)
            _left[model.paths] = moment
            if len(_left) > _KEPT:
                del _left[next(iter(_left))]
    at_work.tidy()


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


@lru_cache(1 << 16)
def _match(path: str, policy: precision.Policy) -> str | None:
    """The name in a policy that applies to a path: it itself, else the first pattern."""
    return path if path in policy.modules else next((name for name in policy.modules if fnmatchcase(path, name)), None)


# --- calls of modules -------------------------------------------------------------------------------------------------


def _enter(module: nn.Module, leaves: list[module_calls.Leave]) -> None:
    if (number := _inside(module)) is not None:
        _look_for_export()
        leaves.append(partial(_leave, len(_entered.stack)))
        with uninterrupted():
            _entered.stack.append(_Entry(_unwrapped(module), number))


def _look_for_export() -> None:
    """torch.export captures autocasts alone."""
    from torch.compiler import is_exporting

    if is_exporting():  # one of the threads
        from torch.fx.experimental.proxy_tensor import get_proxy_mode

        if get_proxy_mode() is not None:
            notices.warn("torch.export", "rules", _LOST)


_LOST = (
    "torch.export leaves out the precision rules for single modules: what is exported computes otherwise than the model does here;"
    " use rules for types of operators, or a mode, instead"
)


def _unwrapped(module: nn.Module) -> nn.Module:
    """Of torch.compile's wrapper: what it wraps. What a scripted one has is without get()."""
    return module._modules["_orig_mod"] if "_orig_mod" in module._modules else module  # type: ignore[return-value]  # noqa: SIM401


def _paths(module: nn.Module) -> dict[Model, str]:
    return _places.get(_unwrapped(module)) or {}


def _inside(module: nn.Module, policies: precision.Policies | None = None) -> int | None:
    """What policies, those in force if none are given, come to inside a module; ``None``: no rule acts on it."""
    policies = precision.here.policies if policies is None else policies
    for model, path in reversed([*_paths(module).items()]):
        for policy in policies.values():
            if _match(path, policy) is not None:
                number = precision.inside(model, partial(_match, path), policies)
                if number is not None:
                    return number
    return None


def _leave(depth: int) -> None:
    """Put back what was in force before, unless somebody else has put something in force since."""
    with uninterrupted():
        while len(_entered.stack) > depth:
            entry = _entered.stack.pop()
            if precision.here.policies is not entry.policies:  # a context was left open inside, or the base was changed
                precision.switch(number_of(precision.here.policies))
            elif (found := precision.switch(entry.before)) != entry.number:
                precision.switch(found)


def number_of(policies: precision.Policies) -> int:
    """What these policies come to here: inside the module whose forward pass is running, if their rules name one."""
    module_calls.drop_ended()
    entry = _entered.stack[-1] if _entered.stack else None
    number = _inside(entry.module, policies) if entry is not None else None
    if number is not None:
        return number
    return precision.combination_of({device: policy.number for device, policy in policies.items()}) if policies else -1


def _is_named(module: nn.Module) -> bool:
    """Which is not the one that is compiled as a whole, inside its rules."""
    policies = [policy for policy in precision.here.policies.values() if policy.modules]
    if not policies or (_entered.stack and _entered.stack[-1].module is module):
        return False
    return any(_match(path, policy) is not None for path in _paths(module).values() for policy in policies)


def _install() -> Callable[[], None]:
    from torch.backends import mha

    module_calls.keep_out(_is_named)
    module_calls.put(_enter, 0)
    had_fast_path = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)  # in which encoders and attention compute without calling their modules

    def remove() -> None:
        module_calls.keep_out(None)
        module_calls.take(_enter)
        mha.set_fastpath_enabled(mha.get_fastpath_enabled() or had_fast_path)

    return remove


_around_calls = Held(_install)
want, release = _around_calls.want, _around_calls.release
"""So many more policies that have rules for modules are in force in a thread, or in a checkpoint; or fewer."""

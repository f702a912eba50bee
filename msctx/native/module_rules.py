"""Precision policies inside modules: in the calls of the watched modules that rules name, while such a policy is in force somewhere.

They come into force outside compiled code: Dynamo breaks its graph at a named module. If its class is not torch's own, its forward
pass is compiled for itself, guarded by the policy inside it; torch's own modules run eagerly.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple

from torch.backends import mha
from torch.compiler import is_exporting

from msctx import notices
from msctx.native import module_calls, precision, watched
from msctx.native.installed import Held

if TYPE_CHECKING:
    from torch import nn


class _Entry(NamedTuple):
    """The call of a named module that runs: what it puts in force, and what was before."""

    place: watched.Place
    policies: precision.Policies
    before: int
    number: int


class _Entered(threading.local):
    def __init__(self) -> None:
        self.stack: list[_Entry] = []


_entered = _Entered()


@lru_cache(1 << 16)
def _match(path: str, policy: precision.Policy) -> str | None:
    """The name in a policy that applies to a path: it itself, else the first pattern."""
    return path if path in policy.modules else next((name for name in policy.modules if fnmatchcase(path, name)), None)


def _enter(module: nn.Module, call: module_calls.Call) -> None:
    policies, stack = precision.here.policies, _entered.stack
    if call.place is not None and (number := _inside(call.place, policies)) is not None:
        _look_for_export()
        call.leaves.append(partial(_leave, len(stack)))
        stack.append(_Entry(call.place, policies, precision.number_here(), number))
        precision.switch(number)


def _look_for_export() -> None:
    """torch.export captures autocasts alone."""

    if is_exporting():  # one of the threads
        from torch.fx.experimental.proxy_tensor import get_proxy_mode

        if get_proxy_mode() is not None:
            notices.warn(_LOST)


_LOST = (
    "torch.export leaves out the precision rules for single modules: what is exported computes otherwise than the model does here;"
    " use rules for types of operators, or a mode, instead"
)


def _inside(place: watched.Place, policies: precision.Policies) -> int | None:
    """The number of *policies* inside a module; ``None``: no rule acts on it."""
    for model, path in reversed([*place.paths.items()]):
        for policy in policies.values():
            if policy.modules and _match(path, policy) is not None:
                number = precision.inside(model, partial(_match, path), policies)
                if number is not None:
                    return number
    return None


def _leave(depth: int) -> None:
    """Restore what was in force before, unless somebody else has put something in force since."""
    stack = _entered.stack
    while len(stack) > depth:
        policies = precision.here.policies
        if policies is not stack[-1].policies:  # a context was left open inside, or the base was changed
            precision.switch(_number(policies, stack[:-1]))
        elif (found := precision.switch(stack[-1].before)) != stack[-1].number:
            precision.switch(found)
        stack.pop()


def number_of(policies: precision.Policies) -> int:
    """What these policies come to here: inside the module whose forward pass is running, if their rules name one."""
    module_calls.drop_ended()
    return _number(policies, _entered.stack)


def _number(policies: precision.Policies, stack: list[_Entry]) -> int:
    number = _inside(stack[-1].place, policies) if stack else None
    if number is not None:
        return number
    return precision.combination_of({device: policy.number for device, policy in policies.items()}) if policies else -1


def _is_named(module: nn.Module) -> bool:
    """Whether a rule names a module, which is not the one that is compiled as a whole, inside its rules."""
    policies = [policy for policy in precision.here.policies.values() if policy.modules]
    if not policies or (place := watched.place_of(module)) is None or (_entered.stack and _entered.stack[-1].place is place):
        return False
    return any(_match(path, policy) is not None for path in [*place.paths.values()] for policy in policies)


def _install() -> Callable[[], None]:

    module_calls.keep_out(_is_named)
    module_calls.turn(_enter, True, all_modules=False)
    had_fast_path = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)  # in which encoders and attention compute without calling their modules

    def remove() -> None:
        module_calls.keep_out(None)
        module_calls.turn(_enter, False)
        mha.set_fastpath_enabled(mha.get_fastpath_enabled() or had_fast_path)

    return remove


installed = Held(_install)
"""Wanted by each policy with rules for modules that is in force in a thread, or in a checkpoint."""

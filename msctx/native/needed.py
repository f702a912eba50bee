"""What the policies need that are in force in some thread: hooks on modules and optimizers, notes of autocasts, Dynamo's guards.

What a thread needed goes with it, also where it ended inside a policy. Callers of want and release are at work: see holders.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from msctx.native import autocasts, hook_guards, named_modules, optimizers
from msctx.native.installed import at_work


class Policy(Protocol):
    @property
    def modules(self) -> dict[str, int]: ...

    @property
    def numbers(self) -> tuple[int, ...]: ...


numbers: Counter[int] = Counter()
"""Number of a policy → in how many threads it is in force."""


class _Life:
    """Goes with its thread."""


class _Here(threading.local):
    def __init__(self) -> None:
        self.policies: list[Policy] = []
        self.life = _Life()
        weakref.finalize(self.life, _ended, self.policies).atexit = False


def want(policies: Iterable[Policy]) -> None:
    """Their numbers have been counted already: see precision."""
    found = [*policies]
    _here.policies += found
    named_modules.want(name for policy in found for name in policy.modules)
    hook_guards.held().want(sum(bool(policy.modules) for policy in found))
    optimizers.want(len(found))
    autocasts.want(len(found))


def release(policies: Iterable[Policy]) -> None:
    found = [*policies]
    for policy in found:
        if policy in _here.policies:  # else that of a checkpoint, which its forward pass has
            _here.policies.remove(policy)
    hook_guards.held().release(sum(bool(policy.modules) for policy in found))
    _release(found)


def _release(found: list[Policy]) -> None:
    named_modules.release(name for policy in found for name in policy.modules)
    optimizers.release(len(found))
    autocasts.release(len(found))
    for number in (number for policy in found for number in policy.numbers):
        numbers[number] -= 1
        if not numbers[number]:
            del numbers[number]


def _ended(policies: list[Policy]) -> None:
    def forget() -> None:
        hook_guards.release_of_ended(sum(bool(policy.modules) for policy in policies))
        _release(policies)

    if policies:
        at_work.later(forget)


_here = _Here()

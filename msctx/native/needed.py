"""What the policies need that are in force in some thread: hooks on modules and optimizers, notes of autocasts, Dynamo's guards.

What a thread needed goes with it, also where it ended inside a policy. Callers of want and release hold the lock of ``at_work``.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable

from msctx.dynamo import outside_dynamo
from msctx.native import autocasts, hook_guards, named_modules, precision
from msctx.native.installed import Held, at_work
from msctx.native.precision import Policy

numbers: Counter[int] = Counter()
"""Number of a policy → in how many threads it is in force."""
ON_ENTRY: list[Callable[[int], None]] = []
"""Called with the number of each policy that is about to be put in force: see precisions.Tally."""


def _install_optimizer_hooks() -> Callable[[], None]:
    """Optimizers step outside precision policies: their own arithmetic is none of the model's."""
    from torch.optim import optimizer

    pause = outside_dynamo(precision.pause)
    begin = optimizer.register_optimizer_step_pre_hook(lambda *_: pause(True))
    end = optimizer.register_optimizer_step_post_hook(lambda *_: pause(False))
    return lambda: (begin.remove(), end.remove())  # type: ignore[func-returns-value, return-value]


_optimizers = Held(_install_optimizer_hooks)


class _Life:
    """Goes with its thread."""


class _Here(threading.local):
    def __init__(self) -> None:
        self.policies: list[Policy] = []
        self.life = _Life()
        weakref.finalize(self.life, _ended, self.policies).atexit = False


def want(policies: Iterable[Policy]) -> None:
    """These policies are about to be put in force in this thread."""
    found = [*policies]
    entered = Counter(number for policy in found for number in policy.numbers)
    numbers.update(entered)
    for number in entered:  # only now: a context that opens meanwhile finds it in force, or is called here
        for note in list(ON_ENTRY):
            note(number)
    _here.policies += found
    named_modules.want(name for policy in found for name in policy.modules)
    hook_guards.held().want(sum(bool(policy.modules) for policy in found))
    _optimizers.want(len(found))
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
    _optimizers.release(len(found))
    autocasts.release(len(found))
    numbers.subtract(number for policy in found for number in policy.numbers)
    for number in [number for number, threads in numbers.items() if not threads]:
        del numbers[number]


def _ended(policies: list[Policy]) -> None:
    def forget() -> None:
        hook_guards.release_of_ended(sum(bool(policy.modules) for policy in policies))
        _release(policies)

    if policies:
        at_work.later(forget)


_here = _Here()

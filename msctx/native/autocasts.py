"""Sees each torch.autocast that is entered or left, and each checkpoint, while a precision policy is in force.

Where the dtype of an autocast is the policy's own, nothing that the guards of compiled code look at distinguishes the two: torch
does not guard how deeply autocasts are nested. And a checkpoint keeps nothing of its forward pass but the autocast around it.
torch.autocast calls torch.set_autocast_cache_enabled last, when it is entered and when it is left; a checkpoint takes what it will
enter again from torch.utils.checkpoint._get_autocast_kwargs. While a policy is in force these two note what is overruled, and let a
checkpoint carry its policy along, also to a backward pass that begins after the block.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from msctx.native import module_rules, precision
from msctx.native.installed import Held, at_work
from msctx.native.module_calls import passed_over


class _Here(threading.local):
    next: precision.Carried | None = None
    """The checkpoint that is about to be computed again."""


_here = _Here()


class Arguments(dict[str, Any]):
    """The arguments of the autocast that a checkpoint enters last, with the policies of its forward pass.

    That they are taken, by ``**``, shows that the checkpoint is about to be computed again.
    """

    _release: Callable[[], None] | None = None  # a signal's handler may raise before there is one

    def __init__(self, arguments: dict[str, Any]) -> None:
        super().__init__(arguments)
        self.carried = precision.carried()
        self._release = _keep(self.carried)

    def __iter__(self) -> Iterator[str]:  # without it ** would not ask for the keys
        return super().__iter__()

    def keys(self) -> Any:
        _here.next = self.carried
        return super().keys()

    def __del__(self) -> None:
        if self._release is not None:
            at_work.later(self._release)


def _install() -> Callable[[], None]:
    import torch
    from torch.utils import checkpoint

    set_cache, arguments_of = torch.set_autocast_cache_enabled, checkpoint._get_autocast_kwargs

    def set_autocast_cache_enabled(*args: Any, **kwargs: Any) -> None:
        set_cache(*args, **kwargs)
        caller = sys._getframe(1).f_locals.get("self")
        _note(caller.device if isinstance(caller, torch.autocast) else None)

    def _get_autocast_kwargs(*args: Any, **kwargs: Any) -> Any:
        device, cpu = arguments_of(*args, **kwargs)
        return device, _carry(cpu)

    passed_over(set_autocast_cache_enabled, _get_autocast_kwargs)
    ours = (
        (torch, set_autocast_cache_enabled, set_cache),
        (checkpoint, _get_autocast_kwargs, arguments_of),
    )
    for module, function, _ in ours:
        setattr(module, function.__name__, function)
    by_jit = torch._C._jit_set_autocast_mode(False)  # TorchScript inserts the casts of torch's own lists into its graphs

    def remove() -> None:
        torch._C._jit_set_autocast_mode(by_jit)
        for module, function, found in ours:
            if getattr(module, function.__name__) is function:  # else somebody has wrapped it since
                setattr(module, function.__name__, found)

    return remove


_hook = Held(_install)
want, release = _hook.want, _hook.release


def _keep(carried: precision.Carried) -> Callable[[], None]:
    """A checkpoint that may be computed again needs what its policies need, also after the block. Returns what releases them."""
    named = sum(bool(policy.modules) for policy in carried.policies.values())
    with at_work.lock:
        module_rules.want(named)
        want(1)
    at_work.tidy()

    def let_go() -> None:
        module_rules.release(named)
        release(1)

    return let_go


def _note(device: Any) -> None:
    checkpoint, _here.next = _here.next, None
    precision.note_autocast(device, checkpoint)


def _carry(arguments: dict[str, Any]) -> dict[str, Any]:
    return Arguments(arguments) if precision.here.policies else arguments

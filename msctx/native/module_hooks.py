"""Hooks of modules that come and go with contexts. They keep their ids, by which Dynamo guards compiled code; no copy has them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, partial
from types import CodeType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


class _Hook(partial[None]):
    """No frame of Python's lies between torch and the function: a signal that came in it would find nobody to leave the module."""

    def __reduce__(self) -> tuple[Any, ...]:
        """What others have put elsewhere does nothing in a copy or a pickle; that can be read where there is no msctx."""
        return getattr, (nullcontext(), "__exit__")


class Hooks:
    """Of one module: one is called before its forward pass, one after it, also when that raises.

    They are there while they are needed.
    """

    def __init__(self, module: nn.Module, before: Callable[..., None], after: Callable[..., None]) -> None:
        """Both functions are called with these hooks first."""
        self._module = weakref.ref(module)
        self._before, self._after = _Hook(before, self), _Hook(after, self)
        self._ids: tuple[int, int] | None = None
        self._wanted = 0
        self._are_there = False

    @property
    def are_needed(self) -> bool:
        return self._wanted > 0

    def want(self, more: int) -> None:
        """So many more want them. The caller holds a lock.

        Torch's own functions register them once; then they are put and taken away by hand, which is six times as fast.
        """
        self._wanted += more
        if self._are_there == self.are_needed or (module := self._module()) is None:
            return
        self._are_there = not self._are_there
        if self._ids is None:
            self._ids = self._registered(module)
            return
        first, last = self._ids
        if self._are_there:
            module._forward_pre_hooks[first] = self._before
            module._forward_hooks[last] = self._after
            module._forward_hooks_always_called[last] = True
        else:  # somebody may have taken them all away
            module._forward_pre_hooks.pop(first, None)
            module._forward_hooks.pop(last, None)
            module._forward_hooks_always_called.pop(last, None)

    def _registered(self, module: nn.Module) -> tuple[int, int]:
        for hook in (self._before, self._after):
            keep_from_dynamo(hook.func.__code__)
        first = module.register_forward_pre_hook(self._before)
        last = module.register_forward_hook(self._after, always_call=True)
        _keep_from_copies(module._forward_pre_hooks, module._forward_pre_hooks)
        for found in (module._forward_hooks, module._forward_hooks_always_called):
            _keep_from_copies(found, module._forward_hooks)
        return first.id, last.id

    def drop(self) -> None:
        """Nobody wants them any more."""
        self.want(-self._wanted)


@cache
def keep_from_dynamo(code: CodeType) -> None:
    """Where eager code calls it beside compiled code, Dynamo would compile it, too: to nothing, or it fails at its instructions."""
    from torch._C._dynamo import eval_frame as dynamo

    skip = dynamo._FrameAction.SKIP
    dynamo.set_code_exec_strategy(code, dynamo._FrameExecStrategy(skip, skip))


def _keep_from_copies(found: Any, hooks: Any) -> None:
    """copy and pickle ask the dictionary itself what a copy of it begins with."""
    found.__reduce_ex__ = partial(_without_ours, weakref.ref(found), weakref.ref(hooks))


def _without_ours(found: Callable[[], Any], hooks: Callable[[], Any], protocol: int) -> tuple[Any, ...]:
    by_id, kept = hooks() or {}, found()
    return type(kept), (), None, None, iter([(key, one) for key, one in kept.items() if not isinstance(by_id.get(key), _Hook)])

"""Optimizer steps, whose own arithmetic precision policies leave alone while one is in force."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial, wraps
from types import FunctionType, MethodType
from typing import Any

from msctx.dynamo import outside_dynamo, untraced
from msctx.native import precision, scaled_steps
from msctx.native.installed import Held


class _Here(threading.local):
    steps = 0
    """How many steps this thread is in: one optimizer may call another."""


_here = _Here()


@outside_dynamo
def _in_steps(steps: int) -> None:
    """An optimizer's closure computes with gradients; its own arithmetic has none."""
    _here.steps = steps
    precision.pause(bool(steps))


def end() -> None:
    """The policies of this thread change: what was paused is over."""
    _here.steps = 0
    precision.pause(False)


@untraced
def _begin_step(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What torch calls before a step; the first of its arguments is the optimizer. A closure runs under the policy again."""
    _in_steps(_here.steps + 1)
    return (*args[:1], *map(_under_policy, args[1:])), {name: _under_policy(value) for name, value in kwargs.items()}


def _under_policy(closure: Any) -> Any:
    if not isinstance(closure, (FunctionType, MethodType, partial)):
        return closure  # also an object that can be called: the step may ask for more of it

    @wraps(closure)
    def run(*args: Any, **kwargs: Any) -> Any:
        steps = _here.steps
        _in_steps(0)
        made = closure(*args, **kwargs)  # one that raises ends the step, for which torch calls no hook
        _in_steps(steps)
        return made

    return run


@untraced
def _end_step(optimizer: Any, *_: Any) -> None:
    _in_steps(max(0, _here.steps - 1))
    scaled_steps.stepped(optimizer)


def _install() -> Callable[[], None]:
    from torch.optim import optimizer

    handles = (
        optimizer.register_optimizer_step_pre_hook(_begin_step),
        optimizer.register_optimizer_step_post_hook(_end_step),
    )

    def remove() -> None:
        for handle in handles:
            handle.remove()

    return remove


installed = Held(_install)

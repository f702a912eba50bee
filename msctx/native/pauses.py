"""What a thread does outside precision policies while one is in force: optimizer steps, and making the parameters of a model."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial, wraps
from importlib import import_module
from types import FunctionType, MethodType
from typing import Any

from msctx.dynamo import outside_dynamo, untraced
from msctx.native import precision, scaled_steps
from msctx.native.installed import Held
from msctx.native.precision import Paused


class _Here(threading.local):
    steps = 0
    """How many steps this thread is in: one optimizer may call another."""
    paused = Paused.NOTHING


_here = _Here()


@outside_dynamo
def _pause(paused: Paused) -> None:
    _here.paused = paused
    precision.pause(paused)


def _in_steps(steps: int) -> None:
    """An optimizer's closure computes with gradients; its own arithmetic has none."""
    _here.steps = steps
    _pause(Paused.UNGRAPHED if steps else Paused.NOTHING)


def end() -> None:
    """The policies of this thread change: what was paused is over."""
    _here.steps, _here.paused = 0, Paused.NOTHING
    precision.pause(Paused.NOTHING)


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


def _paused(function: Callable[..., Any]) -> Callable[..., Any]:
    @untraced
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        before = _here.paused
        _pause(Paused.ALL)
        try:
            return function(*args, **kwargs)
        finally:
            _pause(before)

    return call


def _wrapped(method: Any) -> Any:
    return staticmethod(_paused(method.__func__)) if isinstance(method, staticmethod) else _paused(method)


def _install() -> Callable[[], None]:
    """By hooks on optimizers; PyTorch has none for registering and removing a parametrization, so these methods are wrapped."""
    from torch.nn.utils import parametrizations, parametrize
    from torch.optim import optimizer

    handles = (
        optimizer.register_optimizer_step_pre_hook(_begin_step),
        optimizer.register_optimizer_step_post_hook(_end_step),
    )
    # torch.nn.utils.weight_norm and spectral_norm are functions that hide the modules of these names
    weight_norm = import_module("torch.nn.utils.weight_norm").WeightNorm
    spectral_norm = import_module("torch.nn.utils.spectral_norm").SpectralNorm
    wrapped = [
        (owner, name, vars(owner)[name], _wrapped(vars(owner)[name]))
        for owner, name in (
            (parametrize.ParametrizationList, "__init__"),
            (parametrize.ParametrizationList, "right_inverse"),
            (parametrize, "remove_parametrizations"),
            (getattr(parametrizations, "_SpectralNorm", None), "__init__"),
            (weight_norm, "apply"),
            (weight_norm, "remove"),
            (spectral_norm, "apply"),
            (spectral_norm, "remove"),
        )
        if owner is not None
    ]
    for owner, name, _, ours in wrapped:
        setattr(owner, name, ours)

    def remove() -> None:
        for handle in handles:
            handle.remove()
        for owner, name, found, ours in wrapped:
            if vars(owner)[name] is ours:  # else somebody has wrapped it meanwhile
                setattr(owner, name, found)

    return remove


installed = Held(_install)

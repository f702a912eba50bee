"""Optimizer steps under a precision policy: their own arithmetic is exempt, and gradients from float16 must have been scaled."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial, wraps
from types import FrameType, FunctionType, MethodType
from typing import Any

from torch.amp import GradScaler
from torch.optim import optimizer

from msctx.dynamo import outside_dynamo, untraced
from msctx.native import precision
from msctx.native.counting import Held
from msctx.notices import warn
from msctx.options.precision_rules import precision_of

SCALED: weakref.WeakSet[Any] = weakref.WeakSet()
"""The optimizers whose step that is under way has gradients which were scaled, by no GradScaler.step."""
HOW = (
    "those below 6e-8 vanish. Use scaler = ctx.grad_scaler(), scaler.scale(loss).backward(), scaler.step(optimizer) and "
    "scaler.update(); in a loop that is not yours, LossScaling; under Hugging Face's Trainer, call callback.scaling(loss) in a "
    "compute_loss of your own"
)
TEXT = f"an optimizer steps with gradients from float16 that are not scaled; {HOW}"
NO_STEP = f"the block ends with gradients from float16 that are not scaled; {HOW}"


class _Here(threading.local):
    steps = 0
    """How many steps this thread is in: one optimizer may call another."""
    begun = stepped = 0
    """How many operators of backward passes had computed in float16 when the policy in force began, and at the last step."""
    is_low = has_warned = False


_here = _Here()


# --- steps ------------------------------------------------------------------------------------------------------------


@outside_dynamo
def _in_steps(steps: int) -> None:
    """An optimizer's closure computes with gradients; its own arithmetic has none."""
    _here.steps = steps
    precision.pause(bool(steps))


@untraced
def _begin_step(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What torch calls before a step; the first of its arguments is the optimizer. A closure runs under the policy again."""
    _in_steps(_here.steps + 1)
    return (*args[:1], *map(_under_policy, args[1:])), {name: _under_policy(value) for name, value in kwargs.items()}


def _under_policy(closure: Any) -> Any:
    if not isinstance(closure, (FunctionType, MethodType, partial)):
        return closure  # also an object that can be called: the step may request more of it

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
    _check_scale(optimizer)


def _install() -> Callable[[], None]:
    handles = (
        optimizer.register_optimizer_step_pre_hook(_begin_step),
        optimizer.register_optimizer_step_post_hook(_end_step),
    )

    def remove() -> None:
        for handle in handles:
            handle.remove()

    return remove


installed = Held(_install)


# --- gradients from float16 -------------------------------------------------------------------------------------------


def _halves(traced: bool = False) -> int:
    return int(precision.library().msctx_precision_halves(traced))


def policies_changed() -> None:
    """What is in force in this thread is another; a step that raised has not ended itself."""
    if _here.steps:
        _in_steps(0)
    before, _here.is_low = _here.is_low, any(precision_of(p.text).needs_scaler for p in precision.here.policies.values())
    if _here.is_low and not before:
        _here.begun = _here.stepped = _halves()
        _here.has_warned = False


def left_over() -> list[str]:
    """The warning at the end of a block whose gradients no optimizer has used: none where somebody has a scaler, to step later."""
    if not _here.is_low or _halves() <= _here.stepped or _has_scaler():
        return []
    _here.stepped = _halves()
    return [NO_STEP]


def _has_scaler() -> bool:
    kinds: list[type[GradScaler]] = [GradScaler]
    for kind in kinds:
        kinds += kind.__subclasses__()
    # Not gc.get_objects: a tuple that another thread is just making must have no second reference
    return any(issubclass(type(found), GradScaler) and found.is_enabled() for found in gc.get_referrers(*kinds))


def _check_scale(optimizer: Any) -> None:
    """An optimizer has stepped in this thread: gradients below 6e-8 have vanished if they were not scaled."""
    if _here.is_low:
        _here.stepped = _halves()
        is_from_half = _here.stepped > _here.begun or _halves(traced=True)
        if is_from_half and optimizer not in SCALED and not _here.has_warned and not _is_in_scaler():
            warn(TEXT)
            _here.has_warned = True
    SCALED.discard(optimizer)


def _is_in_scaler() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not GradScaler.step.__code__:
        frame = frame.f_back
    return frame is not None and frame.f_locals["self"].is_enabled()

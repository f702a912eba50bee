"""Where a precision policy is not that of the block: in calls of the watched modules that rules name, and in steps of optimizers.

Inside a module its rules come into force outside compiled code: Dynamo breaks its graph at a named module. If its class is not
torch's own, its forward pass is compiled for itself, guarded by the policy inside it; torch's own modules run eagerly. The arithmetic
of an optimizer is exempt, and gradients from float16 must have been scaled.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import lru_cache
from types import FrameType
from typing import TYPE_CHECKING, Any

from torch.amp import GradScaler
from torch.backends import mha
from torch.optim import optimizer

from msctx import notices
from msctx.native import core, module_tracker, precision_policies, watched_models
from msctx.native.counter_lifetimes import Held
from msctx.outside_dynamo import outside_dynamo, untraced

if TYPE_CHECKING:
    from torch import nn


def _enter(module: nn.Module, call: module_tracker.Call) -> None:
    now = precision_policies.here.now
    if call.place is not None and (number := _inside(call.place, now)) is not None:
        call.leaves.append((_leave, (now, now.place, now.policies, before := now.current)))
        now.place = call.place
        if number != before:
            precision_policies.switch(number)


def _leave(entered: tuple[precision_policies.InForce, watched_models.Place | None, Any, int]) -> None:
    now, around, policies, before = entered
    now.place = around
    if now.current != before or now.policies is not policies:
        precision_policies.switch(number_wanted())


def number_wanted() -> int:
    """What the policies of this thread come to: inside the module whose forward pass is running, if their rules name one."""
    now = precision_policies.here.now
    number = _inside(now.place, now) if now.place is not None else None
    return now.number if number is None else number


def _inside(place: watched_models.Place, now: precision_policies.InForce) -> int | None:
    """The number of the policies in force inside a module; ``None``: no rule acts on it."""
    policies, models, moment, number = place.inside
    if policies is not now.policies or models is not now.models or moment != watched_models.times:
        key = tuple(now.policies.items())
        found = (_named(path, key) for model, path in reversed(place.paths.items()) if model in now.models)
        number = next((one for one in found if one is not None), None)
        place.inside = now.policies, now.models, watched_models.times, number
    return number


@lru_cache(1 << 16)
def _named(path: str, policies: tuple[tuple[str, precision_policies.Policy], ...]) -> int | None:
    """The number of policies inside a module of this path; ``None``: no rule names it."""
    named = {device: policy.modules[name] for device, policy in policies if (name := _name(path, policy)) is not None}
    return precision_policies.combination_of({device: policy.number for device, policy in policies} | named) if named else None


def _name(path: str, policy: precision_policies.Policy) -> str | None:
    """The name in a policy that applies to a path: it itself, else the first pattern."""
    return path if path in policy.modules else next((name for name in policy.modules if fnmatchcase(path, name)), None)


# --- compiled code ----------------------------------------------------------------------------------------------------


def _is_named(module: nn.Module) -> bool:
    """Whether a rule names a module, which is not the one that is compiled as a whole, inside its rules."""
    now = precision_policies.here.now
    policies = tuple(now.policies.items())
    if not any(policy.modules for _, policy in policies) or (place := watched_models.place_of(module)) is None:
        return False
    if now.place is not None and now.place.module is place.module:
        return False
    return any(_named(path, policies) is not None for path in place.paths.values())


def _keep_out(translator: Any) -> None:
    """Break the graph at the call of a named module, which runs eagerly, but for a forward pass that Dynamo compiles by itself.

    The code that calls other modules is guarded: it holds while no rule names them.
    """
    from torch._dynamo.guards import install_guard

    variable = translator.get_local("module")._ComptimeVar__variable
    if _is_named(variable.value):
        translator.graph_break("msctx: rules name this module")
    if variable.source is not None:
        install_guard(variable.source.make_guard(_guard))


def _guard(builder: Any, guard: Any) -> None:
    """Under an accessor of its own, for Dynamo may skip guards that lie in a module's dictionary while that is unchanged:
    use_recursive_dict_tags_for_guards, which is on in torch 2.11.
    """
    from torch._dynamo.guards import GuardManagerType

    text = f"no rule of msctx names {guard.name}"
    manager = builder.get_guard_manager(guard).lambda_manager
    manager(lambda module: not _is_named(module), text, True, GuardManagerType.GUARD_MANAGER).add_lambda_guard(
        bool, [text], guard.user_stack
    )


@contextmanager
def _acting_in_modules() -> Iterator[None]:
    module_tracker.WHEN_COMPILED.append(_keep_out)
    module_tracker.turn(_enter, True, all_modules=False)
    had_fast_path = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)  # in which encoders and attention compute without calling their modules
    yield
    module_tracker.WHEN_COMPILED.remove(_keep_out)
    module_tracker.turn(_enter, False)
    mha.set_fastpath_enabled(mha.get_fastpath_enabled() or had_fast_path)


in_modules = Held(_acting_in_modules)
"""Wanted by each policy with rules for modules that is in force in a thread, or in a checkpoint."""


# --- optimizer steps --------------------------------------------------------------------------------------------------

SCALED: weakref.WeakSet[Any] = weakref.WeakSet()
"""The optimizers whose step that is under way has gradients which were scaled, by no GradScaler.step."""
TEXT = (
    "an optimizer steps with gradients from float16 that are not scaled; those below 6e-8 vanish. Use scaler = ctx.grad_scaler(), "
    "scaler.scale(loss).backward(), scaler.step(optimizer) and scaler.update(); in a loop that is not yours, LossScaling; under "
    "Hugging Face's Trainer, call callback.scaling(loss) in your own compute_loss"
)


class _Here(threading.local):
    steps = 0
    """How many steps this thread is in: one optimizer may call another."""
    is_low = has_warned = False


_here = _Here()


@outside_dynamo
def _in_steps(steps: int) -> None:
    """While an optimizer steps, the policies of this thread pause for what records no graph."""
    _here.steps = steps
    core.load().c.msctx_precision_pause(bool(steps))
    for policy in precision_policies.here.now.policies.values() if not steps else ():  # it has changed the weights
        policy.thaw()


@untraced
def _begin_step(*_: Any) -> None:
    _in_steps(_here.steps + 1)


@untraced
def _end_step(optimizer: Any, *_: Any) -> None:
    _in_steps(max(0, _here.steps - 1))
    if _here.is_low and optimizer not in SCALED and not _here.has_warned and not _is_in_scaler():
        notices.warn(TEXT)
        _here.has_warned = True
    SCALED.discard(optimizer)


@contextmanager
def acting_in_steps() -> Iterator[None]:
    """While some policy is in force in a thread, or in a checkpoint."""
    begin = optimizer.register_optimizer_step_pre_hook(_begin_step)
    end = optimizer.register_optimizer_step_post_hook(_end_step)
    yield
    begin.remove()
    end.remove()


def policies_changed() -> None:
    """What is in force in this thread is another; a step that raised has not ended itself."""
    if _here.steps:
        _in_steps(0)
    was_low = _here.is_low
    _here.is_low = any(policy.means.needs_scaler for policy in precision_policies.here.now.policies.values())
    _here.has_warned = _here.has_warned and was_low


def _is_in_scaler() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not GradScaler.step.__code__:
        frame = frame.f_back
    return frame is not None and frame.f_locals["self"].is_enabled()

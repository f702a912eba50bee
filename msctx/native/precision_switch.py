"""Puts precision policies in force in a thread, with what they need there, and reads and restores what is in force."""

from __future__ import annotations

import ctypes
import gc
from dataclasses import dataclass
from typing import Any

from msctx.errors import NativeError
from msctx.native import core, named_modules, needed, precision
from msctx.native.installed import at_work
from msctx.native.precision import Policy


@dataclass
class State:
    """What a thread had of one device, to be put back as it was found; or, where an autocast around it has ended, as that left it."""

    policy: Policy | None
    enabled: bool
    dtype: Any
    known: Any


def read(device: str) -> str | None:
    """The canonical text of the policy in force in this thread; with a remark where somebody else switched autocast since."""
    import torch

    policy = precision.here.policies.get(device)
    if policy is None:
        return None
    word = precision.words()[device]
    if (is_on := torch.is_autocast_enabled(word)) == policy.is_off:
        return f"{policy.text} (autocast was switched {'on' if is_on else 'off'})"
    dtype = str(torch.get_autocast_dtype(word)).removeprefix("torch.")
    return policy.text if policy.low in ("", dtype) else f"{policy.text} (autocast's dtype was set to {dtype})"


def save(device: str) -> State:
    import torch

    word, known = precision.words()[device], None
    if precision.here.policies:
        precision.library().msctx_precision_here(precision.DEVICES.index(device), ctypes.byref(known := precision.Known()))
    policy = precision.here.policies.get(device)
    return State(policy, torch.is_autocast_enabled(word), torch.get_autocast_dtype(word), known)


def load(device: str, state: State) -> None:
    import torch

    c, place, word = precision.library(), precision.DEVICES.index(device), precision.words()[device]
    _put(device, state.policy)
    torch.set_autocast_enabled(word, state.enabled)
    torch.set_autocast_dtype(word, state.dtype)
    if state.policy is None:
        c.msctx_precision_restore(place)
        state.enabled, state.dtype = torch.is_autocast_enabled(word), torch.get_autocast_dtype(word)
    c.msctx_precision_know(place, None if state.known is None else ctypes.byref(state.known))
    precision.note_autocast()


def write(device: str, text: str) -> None:
    """Put a policy in force in this thread for the operators of one kind of device."""
    import torch

    policy, word = precision.policy_of(text), precision.words()[device]
    if not policy.is_off:
        precision.install(device)
    _put(device, policy)
    torch.set_autocast_enabled(word, not policy.is_off)
    if policy.low:
        torch.set_autocast_dtype(word, getattr(torch, policy.low))
    precision.library().msctx_precision_know(precision.DEVICES.index(device), None)
    precision.note_autocast()


def _put(device: str, policy: Policy | None) -> None:
    with at_work.lock:
        _enter({name: p for name, p in {**precision.here.policies, device: policy}.items() if p is not None})
    at_work.tidy()


def _enter(after: precision.Policies) -> None:
    """Enter what is in force: for the kernels, for the guards of compiled code, and for what is kept of that on disk."""
    before = precision.here.policies
    for policy in (*before.values(), *after.values()):
        policy.thaw()
    needed.want(after.values())
    try:
        number = precision.combination_of({device: policy.number for device, policy in after.items()}) if after else -1
        number = number if (inside := named_modules.inside(after)) is None else inside
    except NativeError:
        before, after = after, before
        raise
    else:
        precision.library().msctx_precision_switch(number)
    finally:
        needed.release(before.values())
        if before:
            precision.pause(False)  # a step that raised has not ended it
        precision.here.policies = after
        if not after:
            named_modules.leave_ended()


def _unscaled() -> str:
    """The warning for a backward pass in float16; ``""`` where somebody has a scaler."""
    import torch

    if any(issubclass(type(found), torch.amp.GradScaler) and found.is_enabled() for found in gc.get_objects()):
        return ""
    return (
        "a backward pass in float16 without a GradScaler: gradients below 6e-8 vanish. Take one from ctx.grad_scaler(), and use "
        "scaler.scale(loss).backward(), scaler.step(optimizer), scaler.update()"
    )


core.WORDED["grad_scaler"] = _unscaled

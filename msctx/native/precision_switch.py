"""Precision policies as a switch of each thread."""

from __future__ import annotations

import ctypes
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils import checkpoint

from msctx import notices
from msctx.native import core, counter_lifetimes, module_tracker, precision_in_modules_and_optimizers, precision_policies
from msctx.native.computed_precisions import Tally, numbers
from msctx.native.counter_lifetimes import Held
from msctx.native.precision_policies import DEVICES, Policy, here, install, words
from msctx.outside_dynamo import passed_over


@dataclass
class State:
    """What a thread had of one device, to be put back as it was found; or, where an autocast around it has ended, as that left it."""

    policy: Policy | None
    enabled: bool
    dtype: Any
    known: Any


def read(device: str) -> str | None:
    """The canonical text of the policy in force in this thread; with a remark where somebody else switched autocast since."""
    policy = here.now.policies.get(device)
    if policy is None:
        return None
    word = words()[device]
    if (is_on := torch.is_autocast_enabled(word)) == policy.means.is_off:
        return f"{policy.text} (autocast was switched {'on' if is_on else 'off'})"
    dtype = str(torch.get_autocast_dtype(word)).removeprefix("torch.")
    return policy.text if policy.means.low in ("", dtype) else f"{policy.text} (autocast's dtype was set to {dtype})"


def save(device: str) -> State:
    word, known = words()[device], None
    if here.now.policies:
        core.load().c.msctx_precision_here(DEVICES.index(device), ctypes.byref(known := precision_policies.Known()))
    policy = here.now.policies.get(device)
    return State(policy, torch.is_autocast_enabled(word), torch.get_autocast_dtype(word), known)


def load(device: str, state: State) -> None:
    c, place, word = core.load().c, DEVICES.index(device), words()[device]
    _put(device, state.policy)
    torch.set_autocast_enabled(word, state.enabled)
    torch.set_autocast_dtype(word, state.dtype)
    if state.policy is None:
        c.msctx_precision_restore(place)
        state.enabled, state.dtype = torch.is_autocast_enabled(word), torch.get_autocast_dtype(word)
    c.msctx_precision_know(place, None if state.known is None else ctypes.byref(state.known))
    note_autocast()


def write(device: str, text: str) -> None:
    """Put a policy in force in this thread for the operators of one kind of device."""
    policy, word = precision_policies.policy_of(text), words()[device]
    if not policy.means.is_off:
        install(device)
    _put(device, policy)
    torch.set_autocast_enabled(word, not policy.means.is_off)
    if policy.means.low:
        torch.set_autocast_dtype(word, getattr(torch, policy.means.low))
    core.load().c.msctx_precision_know(DEVICES.index(device), None)
    note_autocast()


def _put(device: str, policy: Policy | None) -> None:
    """For the kernels, for the guards of compiled code, and for what is kept of that on disk."""
    now = here.now
    after = {name: one for name, one in {**now.policies, device: policy}.items() if one is not None}
    for one in (*now.policies.values(), *after.values()):
        one.thaw()
    now.policies, now.number = after, precision_policies.combination_of({name: one.number for name, one in after.items()})
    _install()
    module_tracker.drop_ended()
    now.current = precision_in_modules_and_optimizers.number_wanted()
    core.load().c.msctx_precision_switch(now.current)
    precision_in_modules_and_optimizers.policies_changed()


_threads: WeakKeyDictionary[threading.Thread, list[Policy]] = WeakKeyDictionary()
_lock = threading.Lock()
"""Held while what is installed changes."""


def _install() -> None:
    """What the policies of this thread and of all others need, before they are in force."""
    with _lock:
        around = [*here.stack, *filter(None, [here.next])]
        _threads[threading.current_thread()] = [policy for one in around for policy in one.policies.values()]
        found = [policy for thread, policies in _threads.items() if thread.is_alive() for policy in policies]
        wanted = {number for policy in found for number in policy.numbers}
        if not wanted <= numbers:
            numbers.update(wanted)
            counter_lifetimes.note(Tally)
        numbers.intersection_update(wanted)
        for held, wants in (
            (precision_in_modules_and_optimizers.in_modules, any(p.modules for p in found)),
            (_autocasts, bool(found)),
        ):
            held.want(wants - held.holders)


# --- autocasts and checkpoints ----------------------------------------------------------------------------------------
# Where the dtype of an autocast is the policy's own, nothing that the guards of compiled code look at distinguishes the two: torch
# does not guard how deeply autocasts are nested. And a checkpoint keeps nothing of its forward pass but the autocast around it.
# torch.autocast calls torch.set_autocast_cache_enabled last, when it is entered and when it is left; a checkpoint takes what it will
# enter again from torch.utils.checkpoint._get_autocast_kwargs. While a policy is in force these two note what is overruled, and let a
# checkpoint carry its policy along, also to a backward pass that begins after the block.


class Arguments(dict[str, Any]):
    """The arguments of the autocast that a checkpoint enters last, with the policies of its forward pass.

    That they are taken, by ``**``, shows that the checkpoint is about to be computed again.
    """

    def __init__(self, arguments: dict[str, Any]) -> None:
        super().__init__(arguments)
        now = here.now
        self.carried = precision_policies.InForce(now.policies, core.load().c.msctx_precision_number(), frozenset(now.models))

    def __iter__(self) -> Iterator[str]:  # without it ** would not request the keys
        return super().__iter__()

    def keys(self) -> Any:
        here.next = replace(self.carried)
        _install()
        return super().keys()


def note_autocast(device: Any = None) -> None:
    """An autocast has been entered or left (the last one of a checkpoint, if that is next), or what is in force has changed.

    Compiled code is distinguished by what is in force and by what an autocast has overruled of it: in this process by a number that
    Dynamo's guards see, on disk by torch.compiler.config.cache_key_tag: the user's own, with ours.
    """
    c, name_of = core.load().c, words()
    place = next((i for i, name in enumerate(DEVICES) if name_of[name] == device), -1)
    noted = c.msctx_precision_note_autocast(place)
    del here.stack[c.msctx_precision_agains() + 1 :]
    if here.next is not None:
        noted = c.msctx_precision_again(here.next.number)
        here.next.current = here.next.number
        here.stack.append(here.next)
        here.next = None
    here.now = here.stack[-1]
    if noted >= 0 <= place and noted >> place & 1:
        _report_autocast(DEVICES[place])
    precision_policies.show_noted(noted)


def _report_autocast(device: str) -> None:
    """One that is switched off is how programs exempt what they compute inside it."""
    word = words()[device]
    policy = here.now.policies.get(device)
    if policy is not None and torch.is_autocast_enabled(word) and here.reported is not here.now.policies:
        here.reported = here.now.policies  # whoever traces the code has other filters of warnings each time
        install(device)  # counts what runs inside it, also where the policy itself casts nothing
        requested = ", ".join(f"{n}={v}" if isinstance(v, str) else n for n, v in json.loads(policy.text).items())
        dtype = str(torch.get_autocast_dtype(word)).removeprefix("torch.")
        notices.warn(
            f"torch.autocast({word!r}, dtype={dtype}) overrides {requested} for the operators inside it, which precisions() "
            "shows with why=torch.autocast: remove the autocast (or the framework's mixed precision), or the option",
        )


@contextmanager
def _replaced() -> Iterator[None]:
    set_cache, arguments_of = torch.set_autocast_cache_enabled, checkpoint._get_autocast_kwargs

    def set_autocast_cache_enabled(*args: Any, **kwargs: Any) -> None:
        set_cache(*args, **kwargs)
        caller = sys._getframe(1).f_locals.get("self")
        depth = len(here.stack)
        note_autocast(caller.device if isinstance(caller, torch.autocast) else None)
        if len(here.stack) < depth:  # a checkpoint has been computed again
            _install()

    def _get_autocast_kwargs(*args: Any, **kwargs: Any) -> Any:
        device, cpu = arguments_of(*args, **kwargs)
        return device, Arguments(cpu) if here.now.policies else cpu

    passed_over(set_autocast_cache_enabled, _get_autocast_kwargs)
    ours = (torch, set_autocast_cache_enabled, set_cache), (checkpoint, _get_autocast_kwargs, arguments_of)
    for module, function, _ in ours:
        setattr(module, function.__name__, function)
    by_jit = torch._C._jit_set_autocast_mode(False)  # TorchScript inserts the casts of torch's own lists into its graphs
    with precision_in_modules_and_optimizers.acting_in_steps():
        yield
    torch._C._jit_set_autocast_mode(by_jit)
    for module, function, found in ours:
        if getattr(module, function.__name__) is function:  # else somebody has wrapped it since
            setattr(module, function.__name__, found)


_autocasts = Held(_replaced)

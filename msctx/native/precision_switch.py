"""Puts precision policies in force in a thread, with what they need there, and reads and restores what is in force."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msctx.errors import NativeError
from msctx.native import core, named_modules, needed, precision
from msctx.native.installed import at_work
from msctx.options.precision_rules import precision_of

ON_ENTRY: list[Callable[[int], None]] = []
"""Called with each policy that is about to be put in force: who counts notes where it stands."""


@dataclass(frozen=True)
class State:
    """What a thread had of one device, to be put back as it was found."""

    text: str | None
    enabled: bool
    dtype: Any
    known: Any


def read(device: str) -> str | None:
    """The canonical text of the policy in force in this thread; with a remark where somebody else switched autocast since."""
    import torch

    text = precision.here.texts.get(device)
    if text is None:
        return None
    found, word = precision_of(text), precision.words()[device]
    if (is_on := torch.is_autocast_enabled(word)) == found.is_off:
        return f"{text} (autocast was switched {'on' if is_on else 'off'})"
    dtype = str(torch.get_autocast_dtype(word)).removeprefix("torch.")
    return text if found.low in ("", dtype) else f"{text} (autocast's dtype was set to {dtype})"


def save(device: str) -> State:
    import torch

    word, known = precision.words()[device], None
    if precision.here.texts:
        precision.library().msctx_precision_here(precision.DEVICES.index(device), ctypes.byref(known := precision.Known()))
    return State(precision.here.texts.get(device), torch.is_autocast_enabled(word), torch.get_autocast_dtype(word), known)


def load(device: str, state: State) -> None:
    import torch

    word = precision.words()[device]
    _set_text(device, state.text)
    torch.set_autocast_enabled(word, state.enabled)
    torch.set_autocast_dtype(word, state.dtype)
    if state.text is None:
        precision.library().msctx_precision_restore(precision.DEVICES.index(device))
    known = None if state.known is None else ctypes.byref(state.known)
    precision.library().msctx_precision_know(precision.DEVICES.index(device), known)
    precision.note_autocast()


def write(device: str, text: str) -> None:
    """Put a policy in force in this thread for the operators of one kind of device."""
    import torch

    sent, word = precision.send(text), precision.words()[device]
    if not sent.is_off:
        precision.install(device)
    _set_text(device, text)
    torch.set_autocast_enabled(word, not sent.is_off)
    if sent.low:
        torch.set_autocast_dtype(word, getattr(torch, sent.low))
    precision.library().msctx_precision_know(precision.DEVICES.index(device), None)
    precision.note_autocast()


def _set_text(device: str, text: str | None) -> None:
    with at_work.lock:
        _enter(device, text)
    at_work.tidy()


def _enter(device: str, text: str | None) -> None:
    """Enter what is in force: for the kernels, for the guards of compiled code, and for what is kept of that on disk."""
    texts = {name: t for name, t in {**precision.here.texts, device: text}.items() if t is not None}
    before, after = ([precision.send(t) for t in found.values()] for found in (precision.here.texts, texts))
    numbers = Counter(number for sent in after for number in sent.numbers)
    precision.thaw([*before, *after])
    needed.numbers.update(numbers)
    for number in numbers:  # only now: a context that opens meanwhile finds it in force, or is called here
        for note in list(ON_ENTRY):
            note(number)
    needed.want(after)
    try:
        combination = (
            precision.combination_of(tuple(precision.number_of(texts.get(d)) for d in precision.DEVICES)) if texts else -1
        )
        combination = combination if (inside := named_modules.inside(texts)) is None else inside
    except NativeError:
        before, after, texts = after, before, precision.here.texts
        raise
    else:
        precision.library().msctx_precision_switch(combination)
    finally:
        needed.release(before)
        if before:
            precision.pause(False)  # a step that raised has not ended it
        precision.here.texts = texts
        if not precision.here.texts:
            named_modules.leave_ended()


def in_force() -> list[int]:
    """The policies that are in force in some thread."""
    return list(needed.numbers)


def _unscaled() -> str:
    """The warning for a backward pass in float16; ``""`` where somebody has a scaler."""
    import gc

    import torch

    if any(issubclass(type(found), torch.amp.GradScaler) and found.is_enabled() for found in gc.get_objects()):
        return ""
    return (
        "a backward pass in float16 without a GradScaler: gradients below 6e-8 vanish. Take one from ctx.grad_scaler(), and use "
        "scaler.scale(loss).backward(), scaler.step(optimizer), scaler.update()"
    )


core.WORDED["grad_scaler"] = _unscaled

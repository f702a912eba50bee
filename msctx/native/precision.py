"""Precision policies in the native core: what a canonical text comes to is sent once, and put in force thread by thread.

A thread has one policy for each kind of device. What is in force is a number, kept where PyTorch carries it along to the threads of a
backward pass and guards compiled code by it; on disk, compiled code is told apart by a tag of the policy's text.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from ctypes import POINTER, Structure, c_char_p, c_int, c_int32, c_int64, c_uint8
from dataclasses import dataclass
from typing import Any

from msctx.errors import NativeError
from msctx.native import core, named_modules
from msctx.options import operators
from msctx.options.precision_rules import ORIGIN, Precision, Rule, precision_of

DEVICES = ("cpu", "cuda", "ascend")
DTYPES = ("float32", "float16", "bfloat16", "float64")
COUNTED = (*DTYPES, "other", "casts", "again", "traced")
OPS = tuple(operators.CLASS_OF)
_PLACE = {name: i for i, name in enumerate(OPS)}
_CODE = {"": 0, ORIGIN: 255} | {name: i + 1 for i, name in enumerate(DTYPES)}
_LISTED = 8


class _Rule(Structure):
    _fields_ = [
        ("op", c_int32),
        ("to", c_uint8 * 3),
        ("output", c_uint8),
        ("widest", c_uint8),
        ("checks_index", c_uint8),
        ("inputs", c_uint8 * _LISTED),
        ("outputs", c_uint8 * _LISTED),
    ]


class _Known(Structure):
    _fields_ = [("nesting", c_int32), ("enabled", c_int32 * 3), ("dtype", c_int32 * 3)]


_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "msctx_precision_install": (c_int, [c_int, POINTER(c_char_p), c_int, POINTER(c_char_p)]),
    "msctx_precision_policy": (c_int, [POINTER(_Rule), c_int, c_int, c_int]),
    "msctx_precision_combination": (c_int, [POINTER(c_int32)]),
    "msctx_precision_here": (None, [POINTER(_Known)]),
    "msctx_precision_know": (None, [POINTER(_Known)]),
    "msctx_precision_switch": (c_int, [c_int]),
    "msctx_precision_counts": (None, [c_int, POINTER(c_int64), c_int]),
    "msctx_precision_scaler": (None, [c_int]),
}


@dataclass(frozen=True)
class _Sent:
    """A policy as the library knows it; *modules*: path of a module → the policy inside it."""

    precision: Precision
    number: int
    modules: dict[str, int]


_lock = threading.Lock()
_installed: set[str] = set()
_sent: dict[str, _Sent] = {}
_combined: dict[tuple[int, ...], int] = {}


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Here(threading.local):
    def __init__(self) -> None:
        self.texts: dict[str, str] = {}  # device → what is in force
        self.found_tag: Any = None  # of compiled code on disk, while something is in force


_here = _Here()


def _library() -> Any:
    library = core.load().c
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _install(library: Any, device: str) -> None:
    if device in _installed:
        return
    names = (c_char_p * len(OPS))(*(name.encode() for name in OPS))
    problem = c_char_p()
    if library.msctx_precision_install(DEVICES.index(device), names, len(OPS), ctypes.byref(problem)) < 0:
        raise NativeError(
            f"precision policies could not be registered with PyTorch's dispatcher: {(problem.value or b'').decode()}"
        )
    _installed.add(device)


def _policy(library: Any, rules: dict[str, Rule], retries: int) -> int:
    array = (_Rule * max(1, len(rules)))()
    for slot, (op, rule) in zip(array, rules.items(), strict=False):
        slot.op = _PLACE[op]
        slot.to[:] = [_CODE[rule.float32], _CODE[rule.float16], _CODE[rule.bfloat16]]
        slot.output, slot.widest, slot.checks_index = _CODE[rule.output], rule.widest, rule.checks_index
        for i, dtype in enumerate(rule.inputs[:_LISTED]):
            slot.inputs[i] = _CODE.get(dtype, 0)
        for i, dtype in enumerate(rule.outputs[:_LISTED]):
            slot.outputs[i] = _CODE.get(dtype, 0)
    number = int(library.msctx_precision_policy(array, len(rules), len(OPS), retries))
    if number < 0:
        raise NativeError("the native core could not take the precision policy: there is no memory left")
    return number


def _send(text: str) -> _Sent:
    """The policy of a canonical text; each is sent once."""
    with _lock:
        if (found := _sent.get(text)) is None:
            library, precision = _library(), precision_of(text)
            number = _policy(library, dict(precision.rules), precision.retries)
            modules = {
                path: _policy(library, {**precision.rules, **rules}, precision.retries)
                for path, rules in precision.modules.items()
            }
            found = _sent[text] = _Sent(precision, number, modules)
    return found


def _combination(policies: tuple[int, ...]) -> int:
    with _lock:
        if (number := _combined.get(policies)) is None:
            number = int(_library().msctx_precision_combination((c_int32 * 3)(*policies)))
            if number < 0:
                raise NativeError("this process has used some 1600 different precision policies: no more can be told apart")
            _combined[policies] = number
    return number


def _words() -> dict[str, str]:
    """Device → its name in PyTorch."""
    import torch

    return {"cpu": "cpu", "cuda": "cuda", "ascend": torch._C._get_privateuse1_backend_name()}


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

    text = _here.texts.get(device)
    if text is None:
        return None
    is_on = torch.is_autocast_enabled(_words()[device])
    if is_on == (not precision_of(text).is_off):
        return text
    return f"{text} (autocast was switched {'on' if is_on else 'off'})"


def save(device: str) -> State:
    import torch

    word, known = _words()[device], None
    if _here.texts:
        _library().msctx_precision_here(ctypes.byref(known := _Known()))
    return State(_here.texts.get(device), torch.is_autocast_enabled(word), torch.get_autocast_dtype(word), known)


def load(device: str, state: State) -> None:
    import torch

    word, text = _words()[device], _here.texts.get(device)
    if text is not None:
        named_modules.release(_send(text).modules)
    torch.set_autocast_enabled(word, state.enabled)
    torch.set_autocast_dtype(word, state.dtype)
    _set_text(device, state.text)
    if state.known is not None:
        _library().msctx_precision_know(ctypes.byref(state.known))


def write(device: str, text: str) -> None:
    """Put a policy in force in this thread for the operators of one kind of device."""
    import torch

    sent, word = _send(text), _words()[device]
    named_modules.want(sent.modules)
    if not sent.precision.is_off:
        _install(_library(), device)
    torch.set_autocast_enabled(word, not sent.precision.is_off)
    if sent.precision.low:
        torch.set_autocast_dtype(word, getattr(torch, sent.precision.low))
    _set_text(device, text)
    _library().msctx_precision_know(None)


def _set_text(device: str, text: str | None) -> None:
    """Enter what is in force: for the kernels, for the guards of compiled code, and for what is kept of that on disk."""
    texts = {name: t for name, t in {**_here.texts, device: text}.items() if t is not None}
    library = _library()
    library.msctx_precision_switch(_combination(tuple(_number(texts.get(d)) for d in DEVICES)) if texts else -1)
    _set_tag(texts)
    _here.texts = texts


def inside(match: Callable[[Iterable[str]], str | None]) -> int | None:
    """The combination inside a module, whose name among those of a policy's rules *match* finds; ``None``: no rule has it."""
    numbers, is_named = [], False
    for device in DEVICES:
        text = _here.texts.get(device)
        name = match(_send(text).modules) if text is not None else None
        is_named |= name is not None
        numbers.append(_number(text) if text is None or name is None else _send(text).modules[name])
    return _combination(tuple(numbers)) if is_named else None


def switch(number: int) -> int:
    """Put a combination in force in this thread; returns the one before."""
    return int(_library().msctx_precision_switch(number))


def _number(text: str | None) -> int:
    return -1 if text is None else _send(text).number


def _set_tag(texts: dict[str, str]) -> None:
    """torch.compiler.config.cache_key_tag, in this thread: the user's own, with what tells our policies apart."""
    import torch.compiler.config as config

    entry: Any = config._config["cache_key_tag"]  # type: ignore[attr-defined]
    if texts and not _here.texts:
        _here.found_tag = (entry.user_override.get(), config.cache_key_tag)
    if texts:
        digest = hashlib.sha256(repr(sorted(texts.items())).encode()).hexdigest()[:16]
        config.cache_key_tag = f"{_here.found_tag[1]}msctx-precision-{digest}"
    elif _here.texts:
        override, tag = _here.found_tag
        config.cache_key_tag = tag  # marks what is kept of the configuration as stale
        entry.user_override.set(override)


# --- counting ---------------------------------------------------------------------------------------------------------


def counts() -> dict[int, Any]:
    """Number of each policy → an array of what has been counted of each operator until now: rows of OPS, columns of COUNTED."""
    import numpy as np

    found: dict[int, Any] = {}
    for sent in list(_sent.values()):
        for number in (sent.number, *sent.modules.values()):
            found[number] = np.zeros((len(OPS), len(COUNTED)), np.int64)
            _library().msctx_precision_counts(number, found[number].ctypes.data_as(POINTER(c_int64)), len(OPS))
    return found


def rules_of(number: int) -> tuple[dict[str, Rule], str]:
    """The rules of a policy, and the path of the module that it is for."""
    for sent in list(_sent.values()):
        if sent.number == number:
            return dict(sent.precision.rules), ""
        for path, inside in sent.modules.items():
            if inside == number:
                return {**sent.precision.rules, **sent.precision.modules[path]}, path
    return {}, ""


# --- losses -----------------------------------------------------------------------------------------------------------


def lowers_to_float16(assignments: Mapping[str, Any], device: str) -> bool:
    """Whether what a plan assigns computes in float16 on a device of PyTorch's name."""
    kind = device if device in ("cpu", "cuda") else "ascend"
    text = assignments.get(f"native.precision.{kind}")
    by_torch_npu = kind == "ascend" and assignments.get("torch.npu.precision_mode") == "allow_fp32_to_fp16"
    return by_torch_npu or bool(text and precision_of(text).low == "float16")


def unscaled() -> str:
    """What is to be said of a backward pass in float16; ``""`` where somebody has a scaler."""
    import gc

    import torch

    if any(issubclass(type(found), torch.amp.GradScaler) and found.is_enabled() for found in gc.get_objects()):
        return ""
    return (
        "a backward pass in float16 without a GradScaler: gradients below 6e-8 vanish. Take one from ctx.grad_scaler(), and use "
        "scaler.scale(loss).backward(), scaler.step(optimizer), scaler.update()"
    )


core.WORDED["grad_scaler"] = unscaled

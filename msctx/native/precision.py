"""Precision policies in the native core: what a canonical text comes to is sent once, and put in force thread by thread.

A thread has one policy for each kind of device. What is in force is a number, kept where PyTorch carries it along to the threads of a
backward pass and guards compiled code by it; on disk, compiled code is distinguished by a tag of the policy's text.
"""

from __future__ import annotations

import ctypes
import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import POINTER, Structure, c_char_p, c_int, c_int32, c_int64, c_uint8, c_uint32
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from msctx import locks
from msctx.errors import NativeError
from msctx.native import cache_tag, core
from msctx.options import operators
from msctx.options.precision_rules import ORIGIN, Precision, PrecisionRule, precision_of

DEVICES = ("cpu", "cuda", "ascend")
DTYPES = ("float32", "float16", "bfloat16", "float64")
BACKWARD = "backward "
COUNTED = (*DTYPES, "other", "casts", "again", "traced", *(f"{BACKWARD}{name}" for name in (*DTYPES, "other")))
OPS = (*operators.CLASS_OF, *operators.BACKWARD)
_PLACE = {name: i for i, name in enumerate(OPS)}
_CODE = {"": 0, ORIGIN: 255} | {name: i + 1 for i, name in enumerate(DTYPES)}
_LISTED = 8


class _Rule(Structure):
    _fields_ = [
        ("op", c_int32),
        ("to", c_uint8 * 3),
        ("output", c_uint8),
        ("widest", c_uint8),
        ("through", c_uint8),
        ("checks_index", c_uint8),
        ("whole", c_uint8),
        ("inputs", c_uint8 * _LISTED),
        ("outputs", c_uint8 * _LISTED),
    ]


class Known(Structure):
    _fields_ = [("overruled", c_int32), ("level", c_int32), ("enabled", c_int32), ("dtype", c_int32)]


_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "msctx_precision_install": (c_int, [c_int, POINTER(c_char_p), POINTER(c_uint8), c_int, POINTER(c_char_p)]),
    "msctx_precision_policy": (c_int, [POINTER(_Rule), c_int, c_int, c_int, c_int, c_int]),
    "msctx_precision_thaw": (None, [c_int]),
    "msctx_precision_combination": (c_int, [POINTER(c_int32), c_uint32]),
    "msctx_precision_here": (None, [c_int, POINTER(Known)]),
    "msctx_precision_know": (None, [c_int, POINTER(Known)]),
    "msctx_precision_switch": (c_int, [c_int]),
    "msctx_precision_note_autocast": (c_int, [c_int]),
    "msctx_precision_restore": (None, [c_int]),
    "msctx_precision_number": (c_int, []),
    "msctx_precision_again": (c_int, [c_int]),
    "msctx_precision_agains": (c_int, []),
    "msctx_precision_pause": (None, [c_int]),
    "msctx_precision_counts": (None, [c_int, POINTER(c_int64), c_int]),
}


@dataclass(frozen=True)
class _Sent:
    """A policy as the library knows it; *modules*: path of a module → the policy inside it."""

    number: int
    modules: dict[str, int]
    low: str
    is_off: bool
    frozen: bool

    @property
    def numbers(self) -> tuple[int, ...]:
        return (self.number, *self.modules.values())


_lock = locks.plain()
_installed: set[str] = set()
_sent: dict[str, _Sent] = {}
_said: dict[int, tuple[str, str]] = {}
"""Number of a policy → its text, and the path of the module that it is for."""
_combined: dict[tuple[int, ...], int] = {}
_contents: dict[int, str] = {}
"""Number of a combination → the digest of its content, the same in any process."""


class Watched:
    """What is known of a watched model."""

    is_open = False
    """Whether an open context watches it: rules act on it."""


OPEN: dict[int, Any] = {}
"""Number of a model → what is known of it, while a context that watches it is open."""


def open_models() -> frozenset[Any]:
    return frozenset([*OPEN.values()])


class _ActsOn(NamedTuple):
    """The models that rules act on in a thread: those of the open contexts; while a checkpoint is computed again, those of its
    forward pass, not those that are open around it.
    """

    carried: frozenset[Any] = frozenset()
    hidden: frozenset[Any] = frozenset()

    def has(self, model: Watched) -> bool:
        return model in self.carried or (model.is_open and model not in self.hidden)

    def models(self) -> frozenset[Any]:
        return self.carried | (open_models() - self.hidden)


class _Here(threading.local):
    def __init__(self) -> None:
        self.texts: dict[str, str] = {}  # device → what is in force
        self.around: list[tuple[dict[str, str], _ActsOn]] = []  # the two around the checkpoints that are computed again
        self.acts_on = _ActsOn()
        self.noted = -1  # what the tag now shows: see msctx_precision_note_autocast


here = _Here()


@cache
def library() -> Any:
    return core.declared(core.load().c, _SIGNATURES)


@cache
def words() -> dict[str, str]:
    """Device → its name in PyTorch."""
    import torch

    return {"cpu": "cpu", "cuda": "cuda", "ascend": torch._C._get_privateuse1_backend_name()}


# --- what the library knows -------------------------------------------------------------------------------------------


def install(device: str) -> None:
    """Register the operators at a device's autocast key, once a process."""
    with _lock:
        if device in _installed:
            return
        names = (c_char_p * len(OPS))(*(name.encode() for name in OPS))
        keeps = (c_uint8 * len(OPS))(*(operators.CLASS_OF.get(name) == "matrix" for name in OPS))
        problem = c_char_p()
        if library().msctx_precision_install(DEVICES.index(device), names, keeps, len(OPS), ctypes.byref(problem)) < 0:
            why = (problem.value or b"").decode()
            raise NativeError(f"precision policies could not be registered with PyTorch's dispatcher: {why}")
        _installed.add(device)


def _listed(dtypes: Sequence[str]) -> list[int]:
    """Codes by position; what is not listed follows the last one that is: a bias the weight."""
    codes = [_CODE.get(dtype, 0) for dtype in dtypes[:_LISTED]]
    return codes + [codes[-1] if codes else 0] * (_LISTED - len(codes))


def _policy(rules: Mapping[str, PrecisionRule], precision: Precision) -> int:
    array = (_Rule * max(1, len(rules)))()
    for slot, (op, rule) in zip(array, rules.items(), strict=False):
        slot.op = _PLACE[op]
        slot.to[:] = [_CODE[rule.float32], _CODE[rule.float16], _CODE[rule.bfloat16]]
        slot.output, slot.widest, slot.through = _CODE[rule.output], 2 if rule.follows else rule.widest, _CODE[rule.through]
        slot.checks_index, slot.whole = rule.checks_index, rule.whole
        slot.inputs[:], slot.outputs[:] = _listed(rule.inputs), _listed(rule.outputs)
    how = (precision.retries, _CODE[precision.low], precision.frozen)
    number = int(library().msctx_precision_policy(array, len(rules), len(OPS), *how))
    if number < 0:
        raise NativeError("the native core could not take the precision policy: there is no memory left")
    return number


def send(text: str) -> _Sent:
    """The policy of a canonical text; each is sent once."""
    with _lock:
        if (found := _sent.get(text)) is None:
            precision = precision_of(text)
            inside = {path: {**precision.rules, **rules} for path, rules in precision.modules.items()}
            number = _policy(precision.rules, precision)
            modules = {path: _policy(rules, precision) for path, rules in inside.items()}
            found = _Sent(number, modules, precision.low, precision.is_off, precision.frozen)
            _said.update({number: (text, path) for path, number in {"": number, **modules}.items()})
            _sent[text] = found
    return found


_TOO_MANY = "this process has used more than two million different precision policies: no more can be distinguished"


def combination_of(policies: tuple[int, ...]) -> int:
    with _lock:
        if (number := _combined.get(policies)) is None:
            content = _digest(repr([_said.get(policy) for policy in policies]))
            number = int(library().msctx_precision_combination((c_int32 * 3)(*policies), int(content[:8], 16)))
            if number < 0:
                raise NativeError(_TOO_MANY)
            _combined[policies], _contents[number] = number, content
    return number


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()[:16]


# --- what is in force -------------------------------------------------------------------------------------------------


def thaw(policies: Iterable[_Sent]) -> None:
    """Forget the casts of weights that were frozen until now."""
    for sent in policies:
        for number in sent.numbers if sent.frozen else ():
            library().msctx_precision_thaw(number)


def number_of(text: str | None) -> int:
    return -1 if text is None else send(text).number


def note_autocast(device: Any = None, checkpoint: Carried | None = None) -> None:
    """An autocast has been entered or left (with *checkpoint*: to compute that again), or what is in force has changed.

    Compiled code is distinguished by what is in force and by what an autocast has overruled of it: in this process by a number that
    Dynamo's guards see, on disk by torch.compiler.config.cache_key_tag: the user's own, with ours.
    """
    c, name_of = library(), words()
    noted = c.msctx_precision_note_autocast(next((i for i, name in enumerate(DEVICES) if name_of[name] == device), -1))
    while len(here.around) > c.msctx_precision_agains():
        here.texts, here.acts_on = here.around.pop()
    if checkpoint is not None:
        noted = c.msctx_precision_again(checkpoint.number)
        here.around.append((here.texts, here.acts_on))
        here.texts, here.acts_on = checkpoint.texts, _ActsOn(checkpoint.models, open_models())
    if noted == -2:
        raise NativeError(_TOO_MANY)
    if noted == here.noted or not (here.texts or cache_tag.is_put()):
        return
    here.noted = noted
    if noted < 0:
        cache_tag.put(None)
        return
    number, overruled = divmod(noted, 1 << len(DEVICES))
    cache_tag.put(f"msctx-precision-{_contents[number]}-{overruled}")


class Carried(NamedTuple):
    """What is in force in a thread, for a checkpoint."""

    number: int
    texts: dict[str, str]
    models: frozenset[Any]


def texts_here() -> dict[str, str]:
    """Device → the policy that is in force in this thread."""
    return here.texts


def carried() -> Carried:
    return Carried(int(library().msctx_precision_number()), dict(here.texts), here.acts_on.models())


def inside(model: Watched, match: Callable[[Iterable[str]], str | None]) -> int | None:
    """The combination inside a module of *model*, whose name among those of a policy's rules *match* finds; ``None``: none acts."""
    if not here.acts_on.has(model):
        return None
    numbers, is_named = [], False
    for device in DEVICES:
        text = here.texts.get(device)
        name = match(send(text).modules) if text is not None else None
        is_named |= name is not None
        numbers.append(number_of(text) if text is None or name is None else send(text).modules[name])
    return combination_of(tuple(numbers)) if is_named else None


def switch(number: int) -> int:
    """Put a combination in force in this thread; returns the one before."""
    before = int(library().msctx_precision_switch(number))
    note_autocast()
    return before


def pause(is_stepping: bool) -> None:
    """While an optimizer steps in this thread, nothing of its own is cast."""
    library().msctx_precision_pause(is_stepping)
    if not is_stepping:
        thaw([send(text) for text in here.texts.values()])  # it has changed the weights


# --- counting ---------------------------------------------------------------------------------------------------------


def counts(numbers: Iterable[int]) -> dict[int, Any]:
    """Number of a policy → an array of what has been counted of each operator until now: rows of OPS, columns of COUNTED."""
    import numpy as np

    found: dict[int, Any] = {}
    for number in numbers:
        found[number] = np.zeros((len(OPS), len(COUNTED)), np.int64)
        library().msctx_precision_counts(number, found[number].ctypes.data_as(POINTER(c_int64)), len(OPS))
    return found


def known() -> list[int]:
    """Every policy of this process."""
    return list(_said)


def rules_of(number: int) -> tuple[Mapping[str, PrecisionRule], str]:
    """The rules of a policy, and the path of the module that it is for."""
    text, path = _said[number]
    precision = precision_of(text)
    return {**precision.rules, **precision.modules.get(path, {})}, path

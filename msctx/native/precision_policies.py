"""Precision policies in the native core: what a canonical text means is sent once, and put in force thread by thread.

A thread has one policy for each kind of device. What is in force is a number, kept where PyTorch carries it along to the threads of a
backward pass and guards compiled code by it; on disk, compiled code is distinguished by a tag of the policy's text.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Collection, Iterable, Mapping
from ctypes import POINTER, Structure, c_char_p, c_int32, c_int64, c_uint8
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.compiler import config

from msctx._version import __version__
from msctx.errors import NativeError
from msctx.native import core, watched_models
from msctx.native.watched_models import Model
from msctx.options.precision_policy import CLASS_OF, GRADIENTS, Precision, PrecisionRule, precision_of
from msctx.torch_config_overrides import NOTHING, Forced, is_threads_own, override, put_override

DEVICES = ("cpu", "cuda", "ascend")
DTYPES = ("float32", "float16", "bfloat16", "float64")
BACKWARD, AUTOCAST = "backward ", "autocast "
COUNTED = (
    *(*DTYPES, "other", "casts", "again", "traced"),
    *(f"{what}{name}" for what in (BACKWARD, AUTOCAST) for name in (*DTYPES, "other")),
)
OPS = (*CLASS_OF, *GRADIENTS)
_PLACE = {name: i for i, name in enumerate(OPS)}


class Known(Structure):
    _fields_ = [("overruled", c_int32), ("level", c_int32), ("enabled", c_int32), ("dtype", c_int32), ("task", c_int64)]


@dataclass(frozen=True, eq=False)
class Policy:
    """A policy as the library knows it; *modules*: path of a module → the number of the policy inside it."""

    text: str
    means: Precision
    number: int
    modules: dict[str, int]

    @property
    def numbers(self) -> tuple[int, ...]:
        return (self.number, *self.modules.values())

    def thaw(self) -> None:
        """Forget the casts of weights that were frozen until now."""
        for number in self.numbers if self.means.frozen else ():
            core.load().c.msctx_precision_thaw(number)


_lock = threading.Lock()
_installed: set[str] = set()
_policies: dict[str, Policy] = {}
TEXTS: dict[int, tuple[str, str]] = {}
"""Number of a policy → its text, and the path of the module that it is for: every policy of this process."""
_combined: dict[tuple[int, ...], int] = {}
_contents: dict[int, str] = {}
"""Number of a combination → the digest of its content, the same in any process."""


@dataclass(slots=True)
class InForce:
    """What a thread has in force, or had in the forward pass of a checkpoint.

    *number*: of the combination, outside of modules that rules name. *models*: those that such rules act on: those of the open
    contexts, or of the forward pass. *place*: of the innermost named module that runs. *current*: the number inside that.
    """

    policies: dict[str, Policy]  # by device
    number: int = -1
    models: Collection[Model] = field(default_factory=lambda: watched_models.OPEN)
    place: watched_models.Place | None = None
    current: int = -1


class _Here(threading.local):
    def __init__(self) -> None:
        self.now = InForce({})  # what is in force
        self.stack = [self.now]  # it is the last one; those before it are around checkpoints that are computed again
        self.next: InForce | None = None  # the checkpoint that is about to be computed again
        self.reported: dict[str, Policy] | None = None  # whose autocast was
        self.noted = -1  # what the tag now shows: see msctx_precision_note_autocast
        self.tag: Any = None  # of the program before the first policy: its override, and the tag


here = _Here()


@cache
def words() -> dict[str, str]:
    """Device → its name in PyTorch."""
    return {"cpu": "cpu", "cuda": "cuda", "ascend": torch._C._get_privateuse1_backend_name()}


# --- what the library knows -------------------------------------------------------------------------------------------


def install(device: str) -> None:
    """Register the operators at a device's autocast key, once a process."""
    with _lock:
        if device in _installed:
            return
        names = (c_char_p * len(OPS))(*(name.encode() for name in OPS))
        matrix = (c_uint8 * len(OPS))(*(CLASS_OF.get(name) == "matrix" for name in OPS))
        if problem := core.load().c.msctx_precision_install(DEVICES.index(device), names, matrix, len(OPS)):
            raise NativeError(f"precision policies could not be registered with PyTorch's dispatcher: {problem}")
        _installed.add(device)


def _send(rules: Mapping[str, PrecisionRule], precision: Precision) -> int:
    """Send a policy as PrecisionPolicy reads it (kernels/glue/precision_policy.h); returns its number."""
    equal: dict[PrecisionRule, list[int]] = {}
    for op, rule in rules.items():
        equal.setdefault(replace(rule, why=""), []).append(_PLACE[op])
    policy = {
        "rules": [{**asdict(rule), "operators": places} for rule, places in equal.items()],
        "operators": len(OPS),
        **{name: getattr(precision, name) for name in ("retries", "low", "frozen")},
    }
    return int(core.load().c.msctx_precision_policy(core.json_of(policy)))


def policy_of(text: str) -> Policy:
    """The policy of a canonical text; each is sent once."""
    with _lock:
        if (found := _policies.get(text)) is None:
            precision = precision_of(text)
            number = _send(precision.rules, precision)
            modules = {path: _send({**precision.rules, **rules}, precision) for path, rules in precision.modules.items()}
            _policies[text] = found = Policy(text, precision, number, modules)
            TEXTS.update({number: (text, path) for path, number in {"": number, **modules}.items()})
    return found


def combination_of(numbers: Mapping[str, int]) -> int:
    """The number of a combination of policies, -1 for none; *numbers*: device → the policy's."""
    if not numbers:
        return -1
    policies = tuple(numbers.get(device, -1) for device in DEVICES)
    with _lock:
        if (number := _combined.get(policies)) is None:
            texts = repr([TEXTS.get(policy) for policy in policies])
            content = hashlib.sha256(texts.encode()).hexdigest()[:16]
            number = int(core.load().c.msctx_precision_combination((c_int32 * 3)(*policies), int(content[:8], 16)))
            _combined[policies], _contents[number] = number, content
    return number


# --- what is in force -------------------------------------------------------------------------------------------------


def show_noted(noted: int) -> None:
    """In the tag; *noted*: see msctx_precision_note_autocast."""
    if noted == here.noted or not (here.now.policies or here.noted >= 0):
        return
    here.noted = noted
    number, overruled = divmod(noted, 1 << len(DEVICES))
    _distinguish("" if noted < 0 else f"msctx-precision-{__version__}-{_contents[number]}-{overruled}")


def switch(number: int) -> None:
    """Put a combination in force in this thread, between two autocasts."""
    c, here.now.current = core.load().c, -2  # no number: where Ctrl-C ends this, it is done again
    c.msctx_precision_switch(number)
    show_noted(c.msctx_precision_note_autocast(-1))
    here.now.current = number


def counts(numbers: Iterable[int]) -> dict[int, Any]:
    """Number of a policy → an array of what has been counted of each operator until now: rows of OPS, columns of COUNTED."""
    found: dict[int, Any] = {}
    for number in [*numbers]:  # a copy: other threads put policies in force meanwhile
        found[number] = np.zeros((len(OPS), len(COUNTED)), np.int64)
        core.load().c.msctx_precision_counts(number, found[number].ctypes.data_as(POINTER(c_int64)), len(OPS))
    return found


# --- compiled code on disk --------------------------------------------------------------------------------------------
# torch distinguishes it by torch.compiler.config.cache_key_tag. Where there is one tag for the process, threads that request
# different things share no code by disk while they do: torch's caches are off.

TAG, DISABLED = "cache_key_tag", "force_disable_caches"


_of_process, _by_thread = SimpleNamespace(tag=None), dict[int, str]()
"""Where there is one tag for the process: what was found of it, as ``_Here.tag``, and what each thread requests."""
_tag_lock = threading.RLock()


class _Disabling(Forced):
    """Whether torch's caches are off in every thread: as an option requests it, or since threads request different things."""

    requested: Any = NOTHING

    def holds(self, value: bool) -> bool:
        return self.requested is value

    def save(self) -> tuple[Any, ...]:
        return self.requested, *super().save()[1:]

    @property
    def forced(self) -> Any:
        return True if len({*filter(None, _by_thread.values())}) > 1 else self.requested

    @forced.setter
    def forced(self, value: Any) -> None:
        self.requested = value

    def _enforce(self, own: Any = None) -> None:
        with _tag_lock:
            super()._enforce(own)


DISABLING = _Disabling(config.__name__, DISABLED, bool)


def _distinguish(content: str) -> None:
    """Distinguish code that this thread compiles by *content*; if that is empty by the user's tag alone, as it was found."""
    if is_threads_own(config, TAG):
        _put_tag(here, content)
        return
    with _tag_lock:
        _by_thread[threading.get_ident()] = content
        _put_tag(_of_process, "".join(sorted({*_by_thread.values()})))
        DISABLING._enforce()


def _put_tag(where: Any, content: str) -> None:
    if where.tag is None:
        where.tag = override(config, TAG), config.cache_key_tag
    found, users = where.tag
    if content:
        config.cache_key_tag = users + content
    else:
        put_override(config, TAG, found)
        where.tag = None

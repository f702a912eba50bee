"""What a translation is given and what it returns; the table of all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

from msctx.options import DEVICES, UNSET, Option, Setting, Settings, rules

THEMES = (
    "algorithms",
    "compilation",
    "compile_cache",
    "determinism",
    "device",
    "fusion",
    "graph_engine",
    "graph_files",
    "graph_mode",
    "inputs",
    "invariance",
    "kernel_tuning",
    "matmul",
    "memory",
    "observers",
    "overlap",
    "placement",
    "precision_mode",
    "profiling",
    "seed",
    "session",
    "tf32",
    "threads",
    "timeouts",
    "tracing",
)
"""The modules of this package that hold translations."""


@dataclass(frozen=True)
class Facts:
    """What a plan may depend on; :mod:`msctx.devices` finds it out, tests make it up."""

    devices: tuple[str, ...] = ("cpu",)
    """The devices that are here."""
    cann: tuple[int, int] | None = None
    """The version of CANN's runtime, where it is known."""
    native: str = ""
    """Why there can be no native core; ``""``: it is there, or can be built."""
    cudnn: str = ""
    """Why cuDNN's algorithms cannot be named; ``""``: they can, as far as is known."""
    mkl: str = ""
    """Why MKL's matrix products cannot keep their bits; ``""``: they can, as far as is known."""
    inductor: str = ""
    """Why inductor has no setting for bits that do not depend on the batch; ``""``: it has one, as far as is known."""
    cublas: str = ""
    """The environment variable that makes cuBLAS compute float32 products from parts, with its value; ``""``: it is not set."""
    matrix_unit: str = ""
    """Why the native core has no matrix unit on this processor; ``""``: it has one, as far as is known."""
    npu: str = ""
    """Why products on an NPU cannot be named in this process; ``""``: they can."""
    half_products: bool | None = None
    """Whether the matrix unit of the NPU has float16 alone; ``None``: not known."""
    rank: int | None = None
    """The number of this process among those of its run; ``None``: it is alone, or not known."""
    free_memory: int = 0
    """Bytes of host memory that this process can still have; 0: not known."""

    @classmethod
    def only(cls, device: str) -> Facts:
        """A machine of which nothing is known but one device: for plans of machines that are not here."""
        return cls(devices=(device,))

    @classmethod
    def everything(cls) -> Facts:
        return cls(devices=DEVICES)


@dataclass(frozen=True)
class Want:
    """One option on one device, to be translated."""

    option: Option
    value: Any
    device: str
    settings: Settings
    facts: Facts

    @property
    def content(self) -> Any:
        """What the file holds that the value names, as plain data."""
        setting = self.settings.get(self.option.name, self.device)
        return setting.content if setting else None

    def other(self, name: str, default: Any = None) -> Any:
        """The value in force of another option on this device."""
        setting = self.settings.get(name, self.device)
        return setting.value if setting else default

    @property
    def shared(self) -> Want:
        """For a switch that all devices share: an option that is set for an NPU alone does not decide it."""
        return replace(self, device="cpu") if self.device == "ascend" and "cpu" in self.facts.devices else self

    def in_force(self, name: str) -> Setting | None:
        """The setting of an option that has a meaning on this device, unless another one rules it out."""
        setting = self._acting(name)
        return None if setting is None or rules.obstacle(setting, self._acting, self.device) else setting

    def _acting(self, name: str) -> Setting | None:
        found = self.settings.get(name, self.device)
        return found if found is not None and self.device in found.option.devices else None


@dataclass(frozen=True)
class Outcome:
    """What comes of an option on a device; see :class:`msctx.plan.Row` for the statuses."""

    status: str
    assignments: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    expected: bool = False
    """Nothing is to be done: it is inert as whoever set it meant it, without a warning, or honoured since it holds already."""
    idle: bool = False
    """Some entries of its file do nothing: a warning, and an error under strict."""


def honoured(assignments: Mapping[str, Any] | None = None, reason: str = "") -> Outcome:
    return Outcome("honoured", assignments or {}, reason)


def approximated(assignments: Mapping[str, Any], differs: str) -> Outcome:
    return Outcome("approximated", assignments, differs)


def inert(reason: str) -> Outcome:
    return Outcome("inert", {}, reason)


def by_entry(entries: Mapping[Any, str], outcome: Outcome) -> Outcome:
    """*outcome* of a file; *entries*: each of it → why it does nothing, or ``""``. Where all do nothing, the file is inert."""
    idle = dict.fromkeys(filter(None, entries.values()))
    if not idle:
        return outcome
    reason = "; ".join(filter(None, [*idle, outcome.reason]))
    return inert(reason) if all(entries.values()) else replace(outcome, status="approximated", reason=reason, idle=True)


def refused(reason: str) -> Outcome:
    return Outcome("refused", {}, reason)


class _AsFound:
    def __repr__(self) -> str:
        return "as found"


AS_FOUND = _AsFound()
"""What a scope wants of a switch that the scopes around it, or the base, have set and it has not: what torch had before."""


def as_it_is(reason: str) -> Outcome:
    """Of a value that leaves things as they are: it does not show whether the option acts."""
    return Outcome("honoured", {}, reason, expected=True)


NOTHING_ASKED = as_it_is("nothing is requested")

STAYS = "stays after a with-block"
"""How a plan describes an assignment that cannot be put back."""

Effect = Callable[[Want], Outcome | None]
E = TypeVar("E", bound=Effect)
EFFECTS: dict[str, Effect] = {}
"""Option name → its translation."""


def effect(*names: str) -> Callable[[E], E]:
    """Register a translation for the options *names*."""

    def register(function: E) -> E:
        for name in names:
            if name in EFFECTS and EFFECTS[name].__module__ != function.__module__:  # its own: its import was interrupted
                raise AssertionError(f"two translations for {name}")
            EFFECTS[name] = function
        return function

    return register


@cache
def _load() -> dict[str, Effect]:
    """The translations, once all themes are imported."""
    for theme in THEMES:
        import_module(f"msctx.effects.{theme}")
    return EFFECTS


def translate(want: Want) -> Outcome | None:
    """Carry one option over to one device, on paper. ``None``: the option does not apply to this device."""
    if want.option.replaced_by:
        return inert(f"deprecated and without effect; use {want.option.replaced_by}")
    if want.device not in want.option.devices:
        if not want.value and want.option.default is not UNSET:  # off
            return NOTHING_ASKED
        return inert(f"it has no meaning on {want.device}")
    return _load()[want.option.name](want)

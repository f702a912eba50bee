"""What a theme is given, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, TypeVar

from msctx.options import Settings, rules


@dataclass(frozen=True)
class Facts:
    """What a plan may depend on; :mod:`msctx.devices` finds it out, tests make it up."""

    devices: tuple[str, ...] = ("cpu",)  # the devices that are here; of one alone nothing else need be known for a plan
    cann: tuple[int, int] | None = None  # the version of CANN's runtime, where it is known
    native: str = ""  # why there can be no native core; ``""``: it is there, or can be built
    cudnn: str = ""  # why cuDNN's algorithms cannot be named; ``""``: they can, as far as is known
    mkl: str = ""  # why MKL's matmuls cannot keep their bits; ``""``: they can, as far as is known
    inductor: str = ""  # why inductor has no setting for bits that are the same in any batch; ``""``: it has, as far as known
    cublas: str = ""  # the environment variable that makes cuBLAS emulate float32, with its value; ``""``: it is not set
    amx: str = ""  # why the native core has no AMX on this processor; ``""``: it has it, as far as is known
    npu: str = ""  # why products on an NPU cannot be named in this process; ``""``: they can
    half_products: bool | None = None  # whether the matrix unit of the NPU has float16 alone; ``None``: not known
    rank: int | None = None  # the number of this process among those of its run; ``None``: it is alone, or not known
    free_memory: int = 0  # bytes of host memory that this process can still have; 0: not known


class On:
    """One device of a plan: what is set on it, resolved once to a plain mapping, and what is known of the machine.

    Attributes:
        found: option → its setting, the winner of all layers and spellings.
        obstacles: option → its outcome, where a rule between options rules its setting out.
        settings: what is left: the settings that have a meaning on this device and are in force.
        main: the device that counts most in the plan.
    """

    def __init__(
        self, device: str, source: Settings, facts: Facts, main: str = "", others: dict[str, On] | None = None
    ) -> None:
        self.device, self.source, self.facts, self.main = device, source, facts, main or device
        self.found = {name: found[0] for name, found in source.on(device).items()}
        acting = {name: setting for name, setting in self.found.items() if device in setting.option.devices}
        obstacles = {name: rules.obstacle(setting, acting.get, device) for name, setting in acting.items()}
        self.obstacles = {name: _ruled_out(*obstacle) for name, obstacle in obstacles.items() if obstacle is not None}
        self.settings = {name: setting for name, setting in acting.items() if name not in self.obstacles}
        self.made: dict[Callable[[On], Any], Any] = {}
        """The values that several options share (:func:`once`)."""
        self._others = {} if others is None else others
        self._others[device] = self

    def get(self, name: str, default: Any = None) -> Any:
        """The value in force of an option."""
        setting = self.settings.get(name)
        return setting.value if setting is not None else default

    def content(self, name: str) -> Mapping[str, Any]:
        """What the file or text in force of an option holds; nothing, where it is not set."""
        setting = self.settings.get(name)
        return setting.content or {} if setting is not None else {}

    def at(self, device: str) -> On:
        """Another device of the same plan."""
        return self._others.get(device) or On(device, self.source, self.facts, self.main, self._others)

    def by_core(self, outcome: Outcome) -> Outcome:
        """An outcome for which the native core has to be there."""
        return refused(self.facts.native) if self.facts.native else outcome

    @property
    def deciding(self) -> On:
        """Who decides about code that inductor compiles for all devices: the main one, but the CPU where that is an NPU."""
        return self.at("cpu" if self.main == "ascend" and "cpu" in self.facts.devices else self.main)


V = TypeVar("V")


def once(function: Callable[[On], V]) -> Callable[[On], V]:
    """For a value that several options share: it is computed once for each device of a plan."""

    @wraps(function)
    def kept(on: On) -> V:
        if function not in on.made:
            on.made[function] = function(on)
        found: V = on.made[function]
        return found

    return kept


@dataclass(frozen=True)
class Outcome:
    """What comes of an option on a device; see :class:`msctx.plan.Row` for the statuses."""

    status: str
    assignments: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    shadowed: bool = False  # no warning: it is as whoever set it meant it, or it holds already
    idle: bool = False  # some entries of its file do nothing: a warning, and an error under strict
    is_error: bool = False  # a plan with it cannot be entered


def reason(cause: str, fix: str = "") -> str:
    """What a plan says of an outcome: at most 15 words of cause; and what can be set or done, as a sentence."""
    return f"{cause}. {fix[0].upper()}{fix[1:]}." if fix else cause


def joined(*reasons: str) -> str:
    """Several reasons as one; at most the last has a fix."""
    return "; ".join(filter(None, reasons))


def honoured(assignments: Mapping[str, Any] | None = None, cause: str = "") -> Outcome:
    return Outcome("honoured", assignments or {}, cause)


def approximated(assignments: Mapping[str, Any], cause: str, fix: str = "") -> Outcome:
    return Outcome("approximated", assignments, reason(cause, fix))


def inert(cause: str, fix: str = "") -> Outcome:
    return Outcome("inert", {}, reason(cause, fix))


def refused(cause: str, fix: str = "") -> Outcome:
    return Outcome("refused", {}, reason(cause, fix))


def as_it_is(cause: str = "nothing is requested") -> Outcome:
    """Of a value that leaves things as they are: it does not show whether the option acts."""
    return Outcome("honoured", {}, cause, shadowed=True)


def by_entry(entries: Mapping[Any, str], outcome: Outcome) -> Outcome:
    """*outcome* of a file; *entries*: each of it → why it does nothing, or ``""``. Where all do nothing, the file is inert."""
    if outcome.status == "refused":
        return outcome
    if not entries:
        return inert("the file has no entries")
    idle = dict.fromkeys(filter(None, entries.values()))
    if not idle:
        return outcome
    why = joined(*idle, outcome.reason)
    return inert(why) if all(entries.values()) else replace(outcome, status="approximated", reason=why, idle=True)


def _ruled_out(status: str, reason: str) -> Outcome:
    """By a rule between options; ``error``: the plan cannot be entered; ``off``: by what is switched off on purpose."""
    named = {"error": "refused", "off": "inert"}.get(status, status)
    return Outcome(named, {}, reason, shadowed=status == "off", is_error=status == "error")


AS_FOUND: Any = type("AsFound", (), {"__repr__": lambda self: "as found"})()
"""What a scope wants of a switch that the scopes around it, or the base, have set and it has not: what torch had before."""


STAYS = "stays after a with-block"
"""How a plan describes an assignment that cannot be put back."""

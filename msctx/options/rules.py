"""How options act on each other, as data.

These rules are those of MindSpore, CANN's TensorFlow adapter and ATC, and hold on every device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from msctx.options.option import DEVICES, Setting

OFF = (False, 0, "0", "OFF", "", None)


@dataclass(frozen=True)
class When:
    """An option that is set, and set to something; with *values*: to one of them; with *test*: to what it accepts."""

    name: str
    values: tuple[Any, ...] = ()
    test: Callable[[Any], bool] | None = None
    words: str = ""

    def holds(self, setting: Setting | None) -> bool:
        if setting is None or setting.option.name != self.name:
            return False
        value = setting.value
        if self.test is not None:
            return self.test(value if setting.content is None else setting.content)
        is_one = any(type(v) is type(value) and v == value for v in self.values or OFF)
        return is_one == bool(self.values)

    def __str__(self) -> str:
        if self.words:
            return f"{self.name} {self.words}"
        return f"{self.name}={'|'.join(map(str, self.values))}" if self.values else self.name


@dataclass(frozen=True)
class Rule:
    """What holds between options; printed, it is a sentence of the reference."""

    @property
    def names(self) -> list[str]:
        """The options that it names."""
        found = [v for value in vars(self).values() for v in (value if isinstance(value, tuple) else [value])]
        return [when.name for when in found if isinstance(when, When)]


@dataclass(frozen=True)
class _Pair(Rule):
    first: When
    second: When

    def holds(self, first: Setting, second: Setting) -> bool:
        return self.first.holds(first) and self.second.holds(second)


@dataclass(frozen=True)
class Overrides(_Pair):
    """*first* takes the place of *second* in one layer. In different layers the higher one wins, unless *always*."""

    always: bool = False
    devices: tuple[str, ...] = DEVICES  # where the first has an effect: elsewhere it takes nobody's place

    def __str__(self) -> str:
        return f"{self.first} wins over {self.second}{_on(self.devices)}"


@dataclass(frozen=True)
class Excludes(_Pair):
    """Two options that must not be set together in one layer; *test* further narrows when (first value, second value)."""

    test: Callable[[Any, Any], bool] | None = None
    why: str = "they exclude each other, set one of them"

    def holds(self, first: Setting, second: Setting) -> bool:
        return super().holds(first, second) and (self.test is None or self.test(first.value, second.value))

    def __str__(self) -> str:
        return f"{self.first} and {self.second}: {self.why}"


@dataclass(frozen=True)
class Needs(Rule):
    """*option* needs one of *others*. Without it: ``refused``, where the source reports an error; ``error``, where it is one here,
    too; ``inert``, where the option merely has no effect: ``off``, as is meant, if one of them is switched off at another place."""

    option: When
    others: tuple[When, ...]
    status: str = "refused"
    devices: tuple[str, ...] = DEVICES

    @property
    def why(self) -> str:
        words = "it has no effect without" if self.status == "inert" else "it needs"
        return f"{words} {' or '.join(map(str, self.others))}"

    def hinders(self, get: Callable[[str], Setting | None], device: str) -> str:
        found = [(other, get(other.name)) for other in self.others]
        if device not in self.devices or any(other.holds(setting) for other, setting in found):
            return ""
        own = get(self.option.name)
        off = [s for other, s in found if s and own and s.place != own.place and not When(other.name).holds(s)]
        return "off" if off and self.status == "inert" else self.status

    def __str__(self) -> str:
        return f"{self.option} {self.why.removeprefix('it ')}{_on(self.devices)}"


@dataclass(frozen=True)
class Forbids(Rule):
    """*option* is refused, or without effect, while *other* is in force; ``off``: as is meant by whoever switched that off."""

    option: When
    other: When
    status: str
    why: str

    def hinders(self, get: Callable[[str], Setting | None], device: str) -> str:
        return self.status if self.other.holds(get(self.other.name)) else ""

    def __str__(self) -> str:
        return f"{self.option} is {'inert' if self.status == 'off' else self.status} with {self.other}: {self.why}"


def _on(devices: tuple[str, ...]) -> str:
    return "" if devices == DEVICES else f" on {' and '.join(devices)}"


R = TypeVar("R", bound=Rule)
TRUE = (True,)
RULES: list[Rule] = []
YIELDING: set[str] = set()
"""The options that may have to yield to another one."""


def declare(rules: Iterable[Rule]) -> None:
    """Add the rules of a theme."""
    for rule in rules:
        RULES.append(rule)
        YIELDING.update(rule.names if isinstance(rule, _Pair) else ())


@cache
def about(name: str, kind: type[R]) -> tuple[R, ...]:
    """The rules of one kind that name an option."""
    return tuple(rule for rule in RULES if isinstance(rule, kind) and name in rule.names)


def is_set(value: Any) -> bool:
    """A test of :class:`When`: any value, off too."""
    return True


def is_above_one(value: Any) -> bool:
    """A test of :class:`When`."""
    return bool(value > 1)


OF_INFERENCE = (When("graph_run_mode", (1,)), "refused", "it is for inference: graph_run_mode=0, or unset")
OF_TRAINING = (When("graph_run_mode", (0,)), "refused", "it is for training: graph_run_mode=1, or unset")
"""What forbids an option that only the other kind of run has a use for."""
NOT_MEASURED = "nothing is measured under deterministic=ON, since another choice gives other bits"
WITHOUT_LIST = When("op_debug_config", test=lambda c: not c.get("op_debug_list"), words="without op_debug_list")


def overrides(winner: Setting, loser: Setting, device: str, *, always: bool) -> bool:
    """Whether one setting takes the place of another of the same layer on a device, by a rule that holds *always* or not."""
    found = about(loser.option.name, Overrides)
    return any(r.holds(winner, loser) and r.always is always and device in r.devices for r in found)


def clash(newer: Setting, older: Setting, device: str | None) -> bool:
    """Whether a setting of a higher layer takes the place of another option's in a lower one; *device*: ``None``: on any."""
    name, pairs = older.option.name, ((newer, older), (older, newer))
    rivals = [r for r in about(name, Overrides) if not r.always and (device is None or device in r.devices)]
    return any(r.holds(*pair) for r in (*rivals, *about(name, Excludes)) for pair in pairs)


def obstacle(setting: Setting, get: Callable[[str], Setting | None], device: str) -> tuple[str, str] | None:
    """What keeps an option from acting on a device beside the others in force: (status, reason), or ``None``."""
    name = setting.option.name
    rules: list[Needs | Forbids] = [*about(name, Needs), *about(name, Forbids)]
    found = [(status, r.why) for r in rules if r.option.holds(setting) and (status := r.hinders(get, device))]
    return min(found, key=lambda one: one[0] != "off", default=None)

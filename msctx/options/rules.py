"""How options act on each other, as data: which wins, which exclude each other, which need another.

The rules are those of MindSpore, CANN's TensorFlow adapter and ATC, and hold on every device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from msctx.options.option import DEVICES

if TYPE_CHECKING:
    from msctx.options.layer import Setting

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
class _Pair:
    first: When
    second: When

    def holds(self, first: Setting, second: Setting) -> bool:
        return self.first.holds(first) and self.second.holds(second)


@dataclass(frozen=True)
class Overrides(_Pair):
    """*first* takes the place of *second* in one layer. In different layers the higher one wins, unless *always*."""

    always: bool = False
    devices: tuple[str, ...] = DEVICES  # where the first has an effect: elsewhere it takes nobody's place


@dataclass(frozen=True)
class Excludes(_Pair):
    """Two options that must not be set together in one layer; *test* further narrows when (first value, second value)."""

    test: Callable[[Any, Any], bool] | None = None
    why: str = "they exclude each other, set one of them"

    def holds(self, first: Setting, second: Setting) -> bool:
        return super().holds(first, second) and (self.test is None or self.test(first.value, second.value))


@dataclass(frozen=True)
class Needs:
    """*option* needs one of *others*. Without it: ``refused``, where the source reports an error; ``error``, where it is one here,
    too; ``inert``, where the option merely has no effect."""

    option: When
    others: tuple[When, ...]
    status: str = "refused"
    devices: tuple[str, ...] = DEVICES

    @property
    def words(self) -> str:
        return "it has no effect without" if self.status == "inert" else "it needs"

    @property
    def others_text(self) -> str:
        return " or ".join(map(str, self.others))


@dataclass(frozen=True)
class Forbids:
    """*option* is refused, or without effect, while *other* is in force; ``off``: as is meant by whoever switched that off."""

    option: When
    other: When
    status: str
    why: str


Rule = Overrides | Excludes | Needs | Forbids
TRUE = (True,)

OVERRIDES: list[Overrides] = []
EXCLUDES: list[Excludes] = []
NEEDS: list[Needs] = []
FORBIDS: list[Forbids] = []
_TABLES: dict[type[Rule], list[Any]] = {Overrides: OVERRIDES, Excludes: EXCLUDES, Needs: NEEDS, Forbids: FORBIDS}
YIELDING: set[str] = set()
"""The options that may have to yield to another one."""


def declare(rules: Iterable[Rule]) -> None:
    """Add the rules of a theme to the tables."""
    for rule in rules:
        _TABLES[type(rule)].append(rule)
        if isinstance(rule, Overrides | Excludes):
            YIELDING.update((rule.first.name, rule.second.name))


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


@cache
def _involving(name: str) -> tuple[tuple[Overrides, ...], tuple[Excludes, ...], tuple[Needs, ...], tuple[Forbids, ...]]:
    """The rules that can rule out an option."""
    return (
        tuple(r for r in OVERRIDES if name in (r.first.name, r.second.name)),
        tuple(r for r in EXCLUDES if name in (r.first.name, r.second.name)),
        tuple(r for r in NEEDS if r.option.name == name),
        tuple(r for r in FORBIDS if r.option.name == name),
    )


def overrides(winner: Setting, loser: Setting, device: str, *, always: bool | None = None) -> bool:
    """Whether one setting takes the place of another of the same layer on a device; *always*: by a rule of that sort alone."""
    candidates = _involving(loser.option.name)[0]
    return any(r.holds(winner, loser) and always in (None, r.always) and device in r.devices for r in candidates)


def clash(newer: Setting, older: Setting, device: str | None) -> bool:
    """Whether a setting of a higher layer takes the place of another option's in a lower one; *device*: ``None``: on any."""
    rivals, exclusive, *_ = _involving(older.option.name)
    pairs = ((newer, older), (older, newer))
    return any(
        not r.always and (device is None or device in r.devices) and any(r.holds(*pair) for pair in pairs) for r in rivals
    ) or any(r.holds(*pair) for r in exclusive for pair in pairs)


def exclusions(settings: list[Setting]) -> Iterator[tuple[Setting, Setting, str]]:
    """The pairs set in one layer that must not be: (first, second, why)."""
    for one in settings:
        for rule in _involving(one.option.name)[1]:
            for other in settings:
                if rule.holds(one, other) and (None in (one.device, other.device) or one.device == other.device):
                    yield one, other, rule.why


def obstacle(setting: Setting, get: Callable[[str], Setting | None], device: str) -> tuple[str, str] | None:
    """What keeps an option from acting on a device beside the others in force: (status, reason), or ``None``."""
    *_, needs, forbids = _involving(setting.option.name)
    found = [(f.status, f.why) for f in forbids if f.option.holds(setting) and f.other.holds(get(f.other.name))]
    unmet = [
        (n.status, f"{n.words} {n.others_text}")
        for n in needs
        if device in n.devices and n.option.holds(setting) and not any(other.holds(get(other.name)) for other in n.others)
    ]
    return next(iter([*(one for one in found if one[0] == "off"), *unmet, *found]), None)


def sentences(name: str) -> list[str]:
    """The rules that apply to an option, for the reference."""
    found = []
    for o in OVERRIDES:
        where = "" if o.devices == DEVICES else f" on {' and '.join(o.devices)}"
        if o.second.name == name:
            found.append(f"{o.first} wins over {'it' if not o.second.values else o.second}{where}")
        if o.first.name == name:
            found.append(f"{'it' if not o.first.values else o.first} wins over {o.second}{where}")
    for e in EXCLUDES:
        if name in (e.first.name, e.second.name):
            found.append(f"{e.first} and {e.second}: {e.why}")
    for n in NEEDS:
        if name in (n.option.name, *(other.name for other in n.others)):
            where = "" if n.devices == DEVICES else f" on {' and '.join(n.devices)}"
            found.append(f"{n.option} {n.words.removeprefix('it ')} {n.others_text}{where}")
    for f in FORBIDS:
        if name in (f.option.name, f.other.name):
            found.append(f"{f.option} is {'inert' if f.status == 'off' else f.status} with {f.other}: {f.why}")
    return found

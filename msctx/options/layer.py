"""Settings in layers, each value with its origin, and the rule that decides which one wins on a device."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, NamedTuple

from msctx.options import rules
from msctx.options.option import DEVICES, Option, device_of, rank_of


@dataclass(frozen=True, slots=True)
class Setting:
    """One option as somebody set it: under which spelling, to which (canonical) value, and where."""

    option: Option
    spelling: str
    value: Any
    origin: str
    content: Any = None
    """The content of the file that the value names, as plain data."""
    via: str = ""
    """The spelling of the setting whose file or text held this one."""

    @property
    def device(self) -> str | None:
        """The one device this spelling means, or ``None`` for every device that has the option."""
        return device_of(self.spelling)

    def says_the_same(self, other: Setting) -> bool:
        return (self.spelling, self.value) == (other.spelling, other.value)

    @property
    def rank(self) -> int:
        return rank_of(self.spelling)

    @property
    def place(self) -> str:
        """The file or the call that set it: its origin without line and column, and without the name of a variable."""
        return "environment" if self.origin.startswith("environment ") else re.sub(r":\d+:\d+$", "", self.origin)


@dataclass(frozen=True, eq=False)
class Layer:
    """The settings of one place: a file, the environment, the command line, ``set_context`` or one with-block."""

    settings: Mapping[str, Setting] = field(default_factory=dict)
    lost: tuple[tuple[Setting, Setting], ...] = ()
    """Settings of layers below that were merged into this one, each with the other option that took its place."""

    def under(self, newer: Layer, *, lower: bool = False) -> Layer:
        """This layer with *newer* laid over it: a later spelling of an option replaces an earlier one.

        Args:
            lower: this is a layer below the newer one, not an earlier part of the same: then the newer one also wins over
                spellings that would win inside one layer, and over options that its own override or exclude.
        """
        kept, lost = {}, [*self.lost, *newer.lost]
        for key, setting in self.settings.items():
            by = next((n for n in newer.settings.values() if _replaces(n, setting, lower)), None)
            if by is None:
                kept[key] = setting
            elif not _is_part(setting, by) and by.option is not setting.option:
                lost.append((setting, by))
        return Layer({**kept, **newer.settings}, tuple(lost))

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """Equal for layers that mean the same and came from the same places."""
        found = (*self.settings.values(), *(setting for pair in self.lost for setting in pair))
        return tuple((s.spelling, repr(s.value), s.origin, repr(s.content)) for s in found)


def _replaces(newer: Setting, older: Setting, lower: bool) -> bool:
    if _is_part(older, newer):
        return True
    if newer.option is not older.option:
        return lower and newer.device in (None, older.device) and rules.clash(newer, older, older.device)
    if lower:
        return newer.device in (None, older.device)
    return newer.device == older.device and newer.rank == older.rank


def _is_part(part: Setting, whole: Setting) -> bool:
    """Whether a setting is a key of a file that another setting replaces."""
    return part.option.name.startswith(f"{whole.option.name}.") and whole.device in (None, part.device)


class Settings:
    """Layers, low to high, and the result on each device; a layer for the base and one for each scope around.

    The higher layer wins; inside one layer the spelling of higher rank does (see :func:`msctx.options.option.rank_of`), and an
    option yields to another that overrides it (:mod:`msctx.options.rules`). Groups therefore merge key by key.
    """

    def __init__(self, layers: Sequence[Layer] = (), below: Settings | None = None) -> None:
        own = [layer for layer in layers if layer.settings]
        self._below = below
        self.layers: tuple[Layer, ...] = (*(below.layers if below else ()), *own)
        self.plans: dict[Any, Any] = {}
        """Facts about a machine → the plan there, kept since a plan is pure."""
        self._on: dict[str, _OnDevice] = {}
        self._highest: dict[str, Setting | None] = {**below._highest} if below else {}  # None: only lost ones
        self.devices = frozenset(s.device for layer in own for s in layer.settings.values() if s.device)
        """Those that some setting names by its group."""
        self.devices |= below.devices if below else frozenset()
        for layer in own:
            for lost, _ in layer.lost:
                self._highest.setdefault(lost.option.name, None)
            self._highest |= _highest(layer)
        self._differ = bool(self.devices) or not rules.YIELDING.isdisjoint(self._highest)
        """Whether devices may differ: some setting means one of them, or a rule may hold on some alone."""

    def all(self, name: str, device: str) -> list[Setting]:
        """Every setting of an option that applies to a device, the winning one first."""
        return self.on(device).get(name, [])

    def get(self, name: str, device: str | None = None) -> Setting | None:
        """The setting in force, or ``None``. Without a device: the highest one, whichever device it means."""
        if device is not None:
            found = self.all(name, device)
            return found[0] if found else None
        return self._highest.get(name)

    def on(self, device: str) -> dict[str, list[Setting]]:
        """Option name → its settings on one device, the winning one first."""
        return self._at(device).found

    def overridden(self, device: str) -> list[Overridden]:
        """The settings that yield on one device: to another spelling in the same layer, or to another option."""
        return self._at(device).overridden

    def counts(self, name: str) -> bool:
        """Whether a setting of an option counts: the key of a replaced file does not."""
        return any(name in self.on(d) or any(o.setting.option.name == name for o in self.overridden(d)) for d in DEVICES)

    def _at(self, device: str) -> _OnDevice:
        key = device if self._differ else ""
        if key not in self._on:
            below = self._below._on.get(device if self._below._differ else "") if self._below else None
            self._on[key] = _OnDevice(self.layers, device, below)
        return self._on[key]

    def __iter__(self) -> Iterator[str]:
        """The names of the options that somebody set."""
        return iter(self._highest)

    def __bool__(self) -> bool:
        return bool(self.layers)


def _highest(layer: Layer) -> dict[str, Setting]:
    """Option name → the setting of a layer that counts where no device is named: the one for all, else that of the highest rank."""
    found: dict[str, Setting] = {}
    for setting in sorted(layer.settings.values(), key=lambda s: (s.device is not None, -s.rank)):
        found.setdefault(setting.option.name, setting)
    return {s.option.name: found[s.option.name] for s in layer.settings.values()}


class Overridden(NamedTuple):
    """A setting that yields, and the one that it yields to.

    It is *expected* where that one was set further in, has the same value, or is a device's own group beside the spelling for
    every device: in the same place, or after it.
    """

    setting: Setting
    winner: Setting
    expected: bool


class _OnDevice:
    """The result of layers on one device; *below* is that of the outer ones, if it is known."""

    def __init__(self, layers: Sequence[Layer], device: str, below: _OnDevice | None) -> None:
        self.count = len(layers)
        self.laid: dict[str, list[Setting]] = {}  # before options yield by a rule that always holds
        self.yielded: list[Overridden] = []
        self.rivals: list[Setting] = []  # what of it may take another's place, the innermost first
        self.level: dict[str, int] = {}  # name → the layer of the setting in force, from the outermost
        outer = below if below and below.stays_under(layers[below.count :]) else None
        for number in reversed(range(outer.count if outer else 0, len(layers))):
            layer = layers[number]
            self.yielded += [Overridden(s, by, True) for s, by in layer.lost if s.device in (None, device)]
            here = self._spelled_best(layer, device)
            lost = {s.spelling: yields for s in here if (yields := _yields(s, here, self.rivals, device))}
            self.yielded += lost.values()
            for setting in here:
                if setting.spelling not in lost:
                    self.laid.setdefault(setting.option.name, []).append(setting)
                    if setting.option.name in rules.YIELDING and not any(map(setting.says_the_same, self.rivals)):
                        self.rivals.append(setting)
                    self.level.setdefault(setting.option.name, number)
        if outer:
            for name, found in outer.laid.items():
                self.laid.setdefault(name, []).extend(found)
            self.rivals, self.yielded = self.rivals + outer.rivals, self.yielded + outer.yielded
            self.level = {**outer.level, **self.level}
        beaten = _beaten([found[0] for found in self.laid.values()], device)
        gone = {setting.option.name for setting, _ in beaten}
        self.found = {name: found for name, found in self.laid.items() if name not in gone}
        inner = [Overridden(s, by, self.level[by.option.name] > self.level[s.option.name]) for s, by in beaten]
        self.overridden = self.yielded + inner

    def stays_under(self, more: Sequence[Layer]) -> bool:
        """Whether no option of more layers takes the place of another, or replaces a file."""
        names = {setting.option.name for layer in more for setting in layer.settings.values()}
        return names.isdisjoint(rules.YIELDING) and names.isdisjoint(file for name in self.laid for file in _files(name))

    def _spelled_best(self, layer: Layer, device: str) -> list[Setting]:
        """The winning spelling of each option in a layer, without keys of a file that an inner layer replaces."""
        found: dict[str, Setting] = {}
        mine = [s for s in layer.settings.values() if s.device in (None, device)]
        for setting in sorted(mine, key=lambda s: -s.rank):
            if any(_is_part(setting, whole) for name in _files(setting.option.name) for whole in self.laid.get(name, ())):
                continue
            if (winner := found.setdefault(setting.option.name, setting)) is not setting:
                meant = winner.place == setting.place or mine.index(winner) > mine.index(setting)
                grouped = (winner.rank, setting.rank) == (1, 0) and meant
                self.yielded.append(Overridden(setting, winner, winner.value == setting.value or grouped))
        return [*found.values()]


def _beaten(settings: Sequence[Setting], device: str) -> list[tuple[Setting, Setting]]:
    """The settings that yield to one of the others by a rule that always holds; one that yields itself takes nobody's place."""
    able = [s for s in settings if s.option.name in rules.YIELDING]

    def winner(setting: Setting) -> Setting | None:
        return next((w for w in able if rules.overrides(w, setting, device, always=True) and winner(w) is None), None)

    return [(setting, w) for setting in able if (w := winner(setting)) is not None]


@cache
def _files(name: str) -> tuple[str, ...]:
    """The options that may name a file of which this one is a key."""
    parts = name.split(".")
    return tuple(".".join(parts[:n]) for n in range(1, len(parts)))


def _yields(setting: Setting, beside: Iterable[Setting], higher: Iterable[Setting], device: str) -> Overridden | None:
    """Whether another option takes the place of a setting: one further in, or one beside it."""
    if setting.option.name not in rules.YIELDING:
        return None
    if (inner := next((h for h in higher if rules.clash(h, setting, device)), None)) is not None:
        return Overridden(setting, inner, True)
    winner = next((b for b in beside if rules.overrides(b, setting, device, always=False)), None)
    return None if winner is None else Overridden(setting, winner, False)

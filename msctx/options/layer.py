"""Settings in layers, each value with its origin, and the rule that decides which one wins on a device."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import accumulate
from typing import Any, NamedTuple

from msctx.options import rules
from msctx.options.option import DEVICES, GROUPS, Option, device_of, rank_of


@dataclass(frozen=True, slots=True)
class Setting:
    """One option as somebody set it: under which spelling, to which (canonical) value, and where."""

    option: Option
    spelling: str
    value: Any
    origin: str
    content: Any = None  # of the file that the value names, as plain data
    via: str = ""  # the spelling of the setting whose file or text held this one

    @property
    def device(self) -> str | None:
        """The one device this spelling means, or ``None`` for every device that has the option."""
        return device_of(self.spelling)

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

    def __init__(self, layers: Iterable[Layer] = ()) -> None:
        self.layers = tuple(layer for layer in layers if layer.settings)
        self.plans: dict[Any, Any] = {}
        """Facts about a machine → the plan there, kept since a plan is pure."""
        self._on: dict[str, _OnDevice] = {}
        self._highest: dict[str, Setting | None] = {}  # None: only lost ones
        for layer in self.layers:
            own = [*layer.settings.values()]
            for setting in (*(lost for lost, _ in layer.lost), *own):
                self._highest.setdefault(setting.option.name, None)
            own.sort(key=lambda s: (s.device is not None, -s.rank))
            for setting in reversed(own):
                self._highest[setting.option.name] = setting
        self.devices = frozenset(s.device for layer in self.layers for s in layer.settings.values() if s.device)
        """Those that some setting names by its group."""

    def all(self, name: str, device: str) -> list[Setting]:
        """Every setting of an option that applies to a device, the winning one first."""
        return self.on(device).get(name, [])

    def get(self, name: str, device: str | None = None) -> Setting | None:
        """The setting in force, or ``None``. Without a device: the highest one, whichever device it means."""
        if device is None:
            return self._highest.get(name)
        return next(iter(self.all(name, device)), None)

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
        if device not in self._on:
            self._on[device] = _OnDevice(self.layers, device)
        return self._on[device]

    def __iter__(self) -> Iterator[str]:
        """The names of the options that somebody set."""
        return iter(self._highest)

    def __bool__(self) -> bool:
        return bool(self.layers)


class Overridden(NamedTuple):
    """A setting that yields, and the one that it yields to.

    It is *expected* where that one was set further in, has the same value, or is a device's own group beside the spelling for
    every device: in the same place, or after it.
    """

    setting: Setting
    winner: Setting
    expected: bool


class _OnDevice:
    """The result of layers on one device."""

    def __init__(self, layers: Sequence[Layer], device: str) -> None:
        self.found: dict[str, list[Setting]] = {}
        self.overridden: list[Overridden] = []
        rivals: list[Setting] = []  # what may take another's place, the innermost first
        levels: dict[str, int] = {}  # name → the layer of the setting in force, from the outermost
        for number, layer in reversed([*enumerate(layers)]):
            self.overridden += [Overridden(s, by, True) for s, by in layer.lost if s.device in (None, device)]
            here = self._spelled_best(layer, device)
            lost = {s.spelling: yields for s in here if (yields := _yields(s, here, rivals, device))}
            self.overridden += lost.values()
            for setting in here:
                if setting.spelling not in lost:
                    self.found.setdefault(setting.option.name, []).append(setting)
                    levels.setdefault(setting.option.name, number)
                    rivals += [setting] if setting.option.name in rules.YIELDING else []
        able = [settings[0] for name, settings in self.found.items() if name in rules.YIELDING]

        def winner(setting: Setting) -> Setting | None:  # by a rule that always holds; what yields itself takes nobody's place
            return next((w for w in able if rules.overrides(w, setting, device, always=True) and winner(w) is None), None)

        for setting, by in [(setting, by) for setting in able if (by := winner(setting))]:
            self.overridden.append(Overridden(setting, by, levels[by.option.name] > levels[setting.option.name]))
            del self.found[setting.option.name]

    def _spelled_best(self, layer: Layer, device: str) -> list[Setting]:
        """The winning spelling of each option in a layer, without keys of a file that an inner layer replaces."""
        best: dict[str, Setting] = {}
        mine = [s for s in layer.settings.values() if s.device in (None, device)]
        for setting in sorted(mine, key=lambda s: -s.rank):
            if any(_is_part(setting, whole) for name in _files(setting.option.name) for whole in self.found.get(name, ())):
                continue
            if (winner := best.setdefault(setting.option.name, setting)) is not setting:
                meant = winner.place == setting.place or mine.index(winner) > mine.index(setting)
                grouped = (winner.rank, setting.rank) == (1, 0) and meant
                self.overridden.append(Overridden(setting, winner, winner.value == setting.value or grouped))
        return [*best.values()]


@cache
def _files(name: str) -> tuple[str, ...]:
    """The options that may name a file of which this one is a key."""
    return tuple(accumulate(name.split(".")[:-1], "{}.{}".format))


def _yields(setting: Setting, beside: Iterable[Setting], inner: Iterable[Setting], device: str) -> Overridden | None:
    """Whether another option takes the place of a setting: one further in, or one beside it."""
    if setting.option.name not in rules.YIELDING:
        return None
    if by := next((one for one in inner if rules.clash(one, setting, device)), None):
        return Overridden(setting, by, True)
    by = next((one for one in beside if rules.overrides(one, setting, device, always=False)), None)
    return Overridden(setting, by, False) if by else None


assert set(GROUPS.values()) <= set(DEVICES)

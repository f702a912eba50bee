"""Settings in layers, each value with its origin: which of them counts on a device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Any, NamedTuple

from msctx.options.option import DEVICES, Setting, rank_of
from msctx.options.rules import YIELDING, clash, overrides


class Origin(NamedTuple):
    """A value and where it came from (``"default"``: nobody set it)."""

    value: Any
    origin: str


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
        return lower and newer.device in (None, older.device) and clash(newer, older, older.device)
    if lower:
        return newer.device in (None, older.device)
    return newer.device == older.device and rank_of(newer.spelling) == rank_of(older.spelling)


def _is_part(part: Setting, whole: Setting) -> bool:
    """Whether a setting is a key of a file that another setting replaces."""
    return part.option.name.startswith(f"{whole.option.name}.") and whole.device in (None, part.device)


class Settings:
    """Layers, low to high, and the result on each device; a layer for the base and one for each scope around.

    The higher layer wins; inside one layer the spelling of higher rank does (see :func:`msctx.options.option.rank_of`), and an
    option yields to another that overrides it (:class:`Overrides`). Groups therefore merge key by key.
    """

    def __init__(self, layers: Sequence[Layer] = (), below: Settings | None = None) -> None:
        self._own, self._below = [layer for layer in layers if layer.settings], below
        self.layers: tuple[Layer, ...] = (*(below.layers if below else ()), *self._own)
        self.plans: dict[Any, Any] = {}
        """Facts about a machine → the plan there, kept since a plan is pure."""
        self._on: dict[str, _OnDevice] = {}
        own = [s for layer in self._own for s in (*(lost for lost, _ in layer.lost), *layer.settings.values())]
        self._names: dict[str, None] = {**(below._names if below else {}), **dict.fromkeys(s.option.name for s in own)}
        named = {s.device for layer in self._own for s in layer.settings.values() if s.device}
        self.devices: frozenset[str] = below.devices.union(named) if below else frozenset(named)
        """Those that some setting names by its group."""
        self._differ = bool(self.devices) or not YIELDING.isdisjoint(self._names)
        """Whether devices may differ: some setting means one of them, or a rule may hold on some alone."""

    def get(self, name: str, device: str | None = None) -> Setting | None:
        """The setting in force, or ``None``. Without a device: that of the first device which has one."""
        for one in (device,) if device else DEVICES if self._differ else DEVICES[:1]:
            if found := self._at(one).found.get(name):
                return found[0]
        return None

    def on(self, device: str) -> dict[str, tuple[Setting, ...]]:
        """Option name → its settings on one device, one for each layer that has one; the one in force first."""
        return self._at(device).found

    def overridden(self, device: str) -> list[Overridden]:
        """The settings that yield on one device: to another spelling in the same layer, or to another option."""
        return self._at(device).overridden

    def _at(self, device: str) -> _OnDevice:
        key = device if self._differ else ""
        if key not in self._on:
            self._on[key] = _OnDevice(self._own, device, self._below._at(device) if self._below else None)
        return self._on[key]

    def __iter__(self) -> Iterator[str]:
        """The names of the options that somebody set."""
        return iter(self._names)

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
    """The result of layers on one device, laid one by one over the outer ones, *below*."""

    def __init__(self, layers: Sequence[Layer], device: str, below: _OnDevice | None) -> None:
        self.laid: dict[str, tuple[Setting, ...]] = below.laid if below else {}  # name → its settings, the innermost first
        self.level: dict[str, int] = below.level if below else {}  # name → in which layer the first stands, from the outermost
        self.yielded: list[Overridden] = below.yielded if below else []  # in the layer in which they stand
        for layer in layers:
            self._lay(layer, device)
        able = [found[0] for name, found in self.laid.items() if name in YIELDING]
        in_force: list[Setting] = []
        self.overridden = [*self.yielded]
        for setting in sorted(able, key=lambda s: -self.level[s.option.name]):
            inner = next((s for s in in_force if self._is_further_in(s, setting) and clash(s, setting, device)), None)
            if inner is None:
                in_force.append(setting)
            else:
                self.overridden.append(Overridden(setting, inner, True))
        for setting, winner in _beaten(in_force, device):
            in_force.remove(setting)
            self.overridden.append(Overridden(setting, winner, self._is_further_in(winner, setting)))
        gone = {setting.option.name for setting in able} - {setting.option.name for setting in in_force}
        self.found = {name: found for name, found in self.laid.items() if name not in gone}

    def _is_further_in(self, one: Setting, other: Setting) -> bool:
        return self.level[one.option.name] > self.level[other.option.name]

    def _lay(self, layer: Layer, device: str) -> None:
        """The winning spelling of each option takes the place of that in layers below, and a file that of the keys there."""
        mine = [s for s in layer.settings.values() if s.device in (None, device)]
        lost = [Overridden(s, by, True) for s, by in layer.lost if s.device in (None, device)]
        here: dict[str, Setting] = {}
        for setting in sorted(mine, key=lambda s: -rank_of(s.spelling)):
            if (winner := here.setdefault(setting.option.name, setting)) is not setting:
                meant = winner.place == setting.place or mine.index(winner) > mine.index(setting)
                grouped = (rank_of(winner.spelling), rank_of(setting.spelling)) == (1, 0) and meant
                lost.append(Overridden(setting, winner, winner.value == setting.value or grouped))
        pairs = [(s, next((b for b in here.values() if overrides(b, s, device, always=False)), None)) for s in here.values()]
        lost += [Overridden(setting, winner, False) for setting, winner in pairs if winner is not None]
        new = [setting for setting, winner in pairs if winner is None]
        laid = {name: found for name, found in self.laid.items() if not any(_is_part(found[0], n) for n in new)}
        self.laid = laid | {s.option.name: (s, *laid.get(s.option.name, ())) for s in new}
        self.level = self.level | dict.fromkeys((s.option.name for s in new), max(self.level.values(), default=0) + 1)
        self.yielded = self.yielded + lost


def _beaten(settings: Sequence[Setting], device: str) -> list[tuple[Setting, Setting]]:
    """The settings that yield to one of the others by a rule that always holds; one that yields itself takes nobody's place."""

    def winner(setting: Setting) -> Setting | None:
        return next((w for w in settings if overrides(w, setting, device, always=True) and winner(w) is None), None)

    return [(setting, w) for setting in settings if (w := winner(setting)) is not None]


def stacked(layers: Iterable[Layer]) -> Layer:
    """Layers, the lowest first, merged into one."""
    return reduce(lambda below, layer: below.under(layer, lower=True), layers, Layer())

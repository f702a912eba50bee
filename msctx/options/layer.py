"""Settings in layers, each value with its origin, and the rule that decides which one wins on a device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msctx.options.option import DEVICES, GROUPS, Option


@dataclass(frozen=True, slots=True)
class Setting:
    """One option as somebody set it: under which spelling, to which (canonical) value, and where."""

    option: Option
    spelling: str
    value: Any
    origin: str

    @property
    def device(self) -> str | None:
        """The one device this spelling means, or ``None`` for every device that has the option."""
        return GROUPS.get(self.spelling.partition(".")[0])


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """What was set in one place: a file, the environment, the command line, ``set_context`` or one with-block."""

    settings: Mapping[str, Setting] = field(default_factory=dict)

    def under(self, newer: Layer, *, lower: bool = False) -> Layer:
        """This layer with *newer* laid over it: a later spelling of an option replaces an earlier one.

        Args:
            lower: this is a layer below the newer one, not an earlier part of the same: then the newer one's flat spelling
                replaces a device's own group too.
        """
        replaced = {(s.option.name, s.device) for s in newer.settings.values()}
        kept = {
            k: s
            for k, s in self.settings.items()
            if (s.option.name, s.device) not in replaced and not (lower and (s.option.name, None) in replaced)
        }
        return Layer({**kept, **newer.settings})

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for layers that mean the same and came from the same places."""
        return tuple((s.spelling, repr(s.value), s.origin) for s in self.settings.values())


class Settings:
    """Layers, low to high, and what they come to on each device; a layer for the base and one for each scope around.

    The higher layer wins; inside one layer a device's own group beats the flat spelling. Groups therefore merge key by key.
    """

    def __init__(self, layers: Sequence[Layer] = ()) -> None:
        self.layers = tuple(layer for layer in layers if layer.settings)
        self._on: dict[str, dict[str, list[Setting]]] = {}

    @property
    def key(self) -> tuple[Any, ...]:
        return tuple(layer.key for layer in self.layers)

    def all(self, name: str, device: str) -> list[Setting]:
        """Every setting of an option that speaks of a device, the winning one first."""
        return self.on(device).get(name, [])

    def get(self, name: str, device: str | None = None) -> Setting | None:
        """The setting in force, or ``None``. Without a device: the highest one, whichever device it means."""
        if device is not None:
            found = self.all(name, device)
            return found[0] if found else None
        for layer in reversed(self.layers):
            mine = [s for s in layer.settings.values() if s.option.name == name]
            if mine:
                return next((s for s in mine if s.device is None), mine[0])
        return None

    def on(self, device: str) -> dict[str, list[Setting]]:
        """Option name → its settings on one device, the winning one first."""
        if device not in self._on:
            found: dict[str, list[Setting]] = {}
            for layer in reversed(self.layers):
                for setting in sorted(layer.settings.values(), key=lambda s: s.device is None):
                    if setting.device in (None, device):
                        found.setdefault(setting.option.name, []).append(setting)
            self._on[device] = found
        return self._on[device]

    def devices(self) -> set[str]:
        """The devices that some setting names by its group."""
        return {s.device for layer in self.layers for s in layer.settings.values() if s.device}

    def __iter__(self) -> Iterator[str]:
        """The names of the options that somebody set."""
        return iter(dict.fromkeys(s.option.name for layer in self.layers for s in layer.settings.values()))

    def __bool__(self) -> bool:
        return bool(self.layers)


assert set(GROUPS.values()) <= set(DEVICES)

"""The value of an option that is in force, under whichever name it is asked for."""

from __future__ import annotations

from typing import Any, NamedTuple

from msctx.options import UNSET, Settings, device_of, find, is_dictionary, option_of


class Origin(NamedTuple):
    """A value and where it came from (``"default"``: nobody set it)."""

    value: Any
    origin: str


def look_up(name: str, settings: Settings, main: str) -> Origin:
    """What holds on the device that the name means, else on the main one, else wherever it was set."""
    option, device = find(name), device_of(name)
    if option is not None and settings.counts(option.name):
        found = settings.get(option.name, device or main) or (None if device else settings.get(option.name))
        if found is not None:
            return Origin(found.value, found.origin)
    keys = [k for layer in settings.layers for k, s in layer.settings.items() if k.startswith(f"{name}.") and not s.via]
    if keys:
        group: dict[str, Any] = {}
        for key in sorted(keys, key=len):  # a file before the keys in it
            inner, parts = group, key[len(name) + 1 :].split(".")
            while len(parts) > 1 and isinstance(inner.get(parts[0], {}), dict):
                inner = inner.setdefault(parts.pop(0), {})
            inner[".".join(parts)] = look_up(key, settings, main).value
        return Origin(group, "; ".join(dict.fromkeys(look_up(key, settings, main).origin for key in keys)))
    if option is None and is_dictionary(name):
        return Origin({}, "default")
    default = option_of(name).default_at(name)
    return Origin(None if default is UNSET else default, "default")

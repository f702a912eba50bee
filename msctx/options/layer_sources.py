"""Where layers come from: arguments with a preset, the MSCTX_* environment, and MSCTX_PLAN for child processes; what a name means."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from msctx._version import __version__
from msctx.errors import Diagnostic, FileError, Mark, Marks, OptionError, nearest, user_frame
from msctx.options import registry
from msctx.options.kinds import BadValue, Size, check
from msctx.options.option import UNSET, Option, Setting, device_of
from msctx.options.settings import Layer, Origin, Settings, stacked
from msctx.shipped import shipped

PLAN = "MSCTX_PLAN"
FIELDS = ("spelling", "value", "origin", "content", "via")


def pack(layer: Layer, **more: Any) -> str:
    """A layer as text; *more*: what else its reader wants, as plain data. Paths become absolute, since children may go elsewhere."""
    settings = [
        {"option": one.option.name, **{field: getattr(one, field) for field in FIELDS}, "value": _absolute(one)}
        for one in layer.settings.values()
    ]
    return json.dumps({"version": __version__, "settings": settings, **more}, separators=(",", ":"))


def _absolute(setting: Setting) -> Any:
    value, option = setting.value, setting.option
    if value and (option.names_file or option.is_output):
        return str(Path(value).expanduser().resolve())
    return f"{int(value)}B" if isinstance(value, Size) else value  # a bare number that is small would be a mistake


def read_carried(environment: Mapping[str, str]) -> dict[str, Any]:
    """The content of the variable; empty: it is not set.

    Raises:
        OptionError: it is not what :func:`pack` makes, or is of another version of msctx.
    """
    if not (text := environment.get(PLAN)):
        return {}
    with suppress(ValueError, TypeError, KeyError):
        found = dict(json.loads(text))
        if found["version"] == __version__:
            return found
    what, advice = f"is not what `msctx exec` of msctx {__version__} writes", f"unset {PLAN}, or restart the program"
    raise OptionError([Diagnostic(PLAN, what, "environment", suggestion=advice)])


def carried_layer(environment: Mapping[str, str]) -> Layer:
    """The options in it, each with the origin that it had."""
    settings = {}
    for row in read_carried(environment).get("settings", ()):
        option = registry.OPTIONS[row["option"]]
        settings[row["spelling"]] = Setting(**{**row, "option": option, "value": check(option.kind, row["value"])[0]})
    return Layer(settings)


def note_process(environment: Mapping[str, str], text: str) -> bool:
    """Leave a line of a process that has entered it, for whoever waits for one on this machine; whether that is so."""
    if seen := read_carried(environment).get("seen"):
        with suppress(OSError):  # on another machine, or nobody waits any more
            place = os.open(seen, os.O_WRONLY | os.O_APPEND)
            os.write(place, f"{text}\n".encode())
            os.close(place)
            return True
    return False


INHERITED = "with-blocks of the parent process"
LEVELS = ("preset", "yaml", "environment", "command line", "set_context", INHERITED)
"""The layers below all with-blocks, low to high."""

PREFIX = "MSCTX_"
RESERVED = {"MSCTX_CACHE_DIR", "MSCTX_ISA", PLAN}
"""Variables that steer msctx itself and are no options."""


def presets() -> dict[str, Path]:
    """The presets that msctx ships, by name."""
    return shipped("presets")


def with_preset(preset: str | PathLike[str] | None, options: dict[str, Any]) -> dict[str, Any]:
    """Options with the preset that was given beside them."""
    if preset is None:
        return options
    if callable(preset):
        raise TypeError("write @msctx.context(...), with parentheses and options")
    if isinstance(preset, Mapping):
        raise OptionError([Diagnostic("preset", "options are keyword arguments: write context(**options)", user_frame()[0])])
    if "preset" in options:
        raise OptionError([Diagnostic("preset", f"{options['preset']!r} contradicts {preset!r}; there can be one")])
    return {"preset": preset, **options}


def flatten(levels: Mapping[str, Layer]) -> Layer:
    """The levels below all with-blocks, merged into one layer."""
    return stacked(levels[level] for level in LEVELS if level in levels)


def layer_of(options: Mapping[str, Any], origin: str) -> Layer:
    """The settings of one place: its preset, and over it the rest."""
    problems: list[Diagnostic] = []
    layers: list[Layer] = []
    with collected(problems):
        if options.get("preset") is not None:
            layers.append(preset_layer(options["preset"], origin))
    with collected(problems):
        layers.append(registry.make_layer({k: v for k, v in options.items() if k != "preset"}, origin))
    if problems:
        raise OptionError(problems)
    return stacked(layers)


@contextmanager
def collected(problems: list[Diagnostic], of: type[OptionError | FileError] = OptionError) -> Iterator[None]:
    """Errors become some of many."""
    try:
        yield
    except of as error:
        problems.extend(error.problems)


SECTIONS = ("context", "experiment", "record", "compare", "axes", "workload")
"""What a file of options may hold, so that a preset can be the file of an experiment."""


def wrong_section(key: str, allowed: Iterable[str], where: str, mark: Mark | None) -> Diagnostic:
    """What is wrong with a section that is none of those allowed."""
    text, hint = "unknown section", nearest(key, allowed)
    if registry.find(key):
        text, hint = "is an option: it belongs under `context:`", ""
    return Diagnostic(key, text, where, ", ".join(allowed), hint, mark)


def preset_layer(preset: Any, origin: str, marks: Marks | None = None) -> Layer:
    """The options of a preset, by name or by the path of a YAML file of your own."""
    from msctx.options.yaml_json_ini import load

    known = presets()
    preset = fspath(preset) if isinstance(preset, PathLike) else preset
    mark = marks(("preset",)) if marks else None
    if not isinstance(preset, str) or (preset not in known and not preset.endswith((".yaml", ".yml"))):
        near, allowed = nearest(str(preset), known), f"{', '.join(known)}, or the path of a YAML file"
        raise OptionError([Diagnostic("preset", f"{preset!r} is not a preset", origin, allowed, near and repr(near), mark)])
    document = load(known.get(preset, preset), collect=True)
    for key in document.data if isinstance(document.data, dict) else ():
        if key not in SECTIONS:
            document.problems.append(wrong_section(key, SECTIONS, origin, document.mark((key, ""))))
    if not isinstance(document.data, dict) or "context" not in document.data:
        text = f"{preset} has no `context:` section; put its options below such a line"
        raise OptionError(document.problems or [Diagnostic("preset", text, origin, mark=mark)])
    values, layer = document.data["context"], Layer()
    if not isinstance(values, dict | None):
        wrong = [Diagnostic("context", "is not a dictionary", origin, mark=document.mark(("context",)))]
        raise OptionError(document.problems or wrong)
    with collected(document.problems):
        layer = registry.make_layer(values or {}, f"preset {preset}", None if preset in known else document.under("context"))
    if document.in_order().problems:
        raise OptionError(document.problems)
    return layer


def environment_layers(environment: Mapping[str, str]) -> dict[str, Layer]:
    """MSCTX_DETERMINISTIC=ON, MSCTX_GPU_CONFIG__CONV_ALLOW_TF32=false …; a double underscore stands for a dot.

    Under them lies what MSCTX_PLAN carries.
    """
    problems: list[Diagnostic] = []
    preset = Layer()
    settings: dict[str, Setting] = {}
    for name in sorted(n for n in environment if n.startswith(PREFIX) and n not in RESERVED):
        spelling, text, where = _spelling(name), environment[name], f"environment {name}"
        option = registry.find(spelling)
        try:
            if spelling == "preset":
                preset = preset_layer(text, name)
            elif not (text or option is None or option.is_text):
                problems.append(Diagnostic(name, "is empty", "environment", suggestion="unset it, or give it a value"))
            else:
                settings |= registry.make_layer({spelling: _value(option, spelling, text, where)}, where).settings
        except BadValue as error:
            problems.append(Diagnostic(name, str(error), "environment"))
        except (OptionError, FileError) as error:
            problems.extend(error.problems)
    problems.extend(registry.contradictions(settings, "environment"))
    if problems:
        raise OptionError(problems)
    levels = {"preset": preset, "environment": carried_layer(environment).under(Layer(settings))}
    return {level: layer for level, layer in levels.items() if layer.settings}


def is_option(variable: str) -> bool:
    """Whether a variable named ``MSCTX_…`` sets an option."""
    spelling = _spelling(variable)
    return spelling == "preset" or registry.find(spelling) is not None or registry.is_dictionary(spelling)


def _spelling(variable: str) -> str:
    return variable[len(PREFIX) :].lower().replace("__", ".")


def _value(option: Option | None, spelling: str, text: str, where: str) -> Any:
    """A variable's value; there 1 and 0 are how everybody writes true and false."""
    if (option is None or not option.is_text) and text[:1] == "{":
        from msctx.options.yaml_json_ini import parse

        return parse(text, where).data
    return registry.from_text(spelling, text, bits=True)


def look_up(name: str, settings: Settings, main: str) -> Origin:
    """The value on the device that the name means, else on the main one."""
    option, device = registry.find(name), device_of(name)
    if option is not None and (found := settings.get(option.name, device or main)) is not None:
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
    if option is None and registry.is_dictionary(name):
        return Origin({}, "default")
    default = registry.option_of(name).default_at(name)
    return Origin(None if default is UNSET else default, "default")

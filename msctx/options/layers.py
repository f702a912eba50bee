"""Where layers come from: keyword arguments with a preset, and the MSCTX_* environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msctx.errors import OptionError, Problem, nearest
from msctx.options.layer import Layer
from msctx.options.registry import Marks, find, make_layer

LEVELS = ("preset", "yaml", "environment", "command line", "set_context")
"""The layers below all with-blocks, low to high."""

PREFIX = "MSCTX_"
RESERVED = {"MSCTX_CACHE", "MSCTX_ISA", "MSCTX_JIT"}
"""Variables that steer msctx itself and are no options."""


def presets() -> dict[str, Path]:
    """The presets that msctx ships, by name."""
    folder = shipped("presets")
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def shipped(folder: str) -> Path:
    """A folder of the configurations that travel with msctx: inside the wheel, or beside the package in a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "_configs"
    return (inside if inside.is_dir() else package.parent / "configs") / folder


def layers_of(options: Mapping[str, Any], origin: str, marks: Marks | None = None) -> tuple[Layer, ...]:
    """The layers of what was set in one place, lowest first: its preset, then the rest."""
    if not options:
        return ()
    rest = {k: v for k, v in options.items() if k != "preset"}
    lower = preset_layer(options["preset"], origin, marks) if options.get("preset") is not None else Layer()
    return tuple(layer for layer in (lower, make_layer(rest, origin, marks)) if layer.settings)


def preset_layer(preset: Any, origin: str, marks: Marks | None = None) -> Layer:
    """The options of a preset, by name or by the path of a YAML file of your own."""
    from msctx.options.yamlfile import load

    known = presets()
    mark = marks(("preset",)) if marks else None
    if not isinstance(preset, str) or (preset not in known and not preset.endswith((".yaml", ".yml"))):
        names = ", ".join(known)
        hint = repr(near) if isinstance(preset, str) and (near := nearest(preset, known)) else ""
        text = f"{preset!r} is not a preset"
        raise OptionError([Problem("preset", text, origin, f"{names}, or the path of a YAML file", hint, mark)])
    document = load(known.get(preset, preset))
    values = document.data.get("context") if isinstance(document.data, dict) else None
    if not isinstance(values, dict):
        raise OptionError([Problem("preset", f"{preset} has no `context:` section", origin, mark=mark)])
    layer = make_layer(values, f"preset {preset}", document.under("context"))
    if preset not in known:
        return layer
    short = {k: type(s)(s.option, s.spelling, s.value, f"preset {preset}") for k, s in layer.settings.items()}
    return Layer(short)


def environment_layers(environment: Mapping[str, str]) -> dict[str, Layer]:
    """MSCTX_DETERMINISTIC=ON, MSCTX_GPU_CONFIG__CONV_ALLOW_TF32=false …; a double underscore stands for a dot."""
    names = [n for n in environment if n.startswith(PREFIX) and n not in RESERVED]
    if not names:
        return {}
    from msctx.options.yamlfile import AmbiguousNumber, scalar

    problems: list[Problem] = []
    levels: dict[str, dict[str, Any]] = {"preset": {}, "environment": {}}
    for name in sorted(names):
        spelling = name[len(PREFIX) :].lower().replace("__", ".")
        try:
            value = scalar(environment[name])
            if spelling == "preset":
                levels["preset"].update(preset_layer(environment[name], name).settings)
                continue
            if find(spelling) is None:
                near = nearest(spelling, [*_environment_names()])
                hint = PREFIX + near.upper().replace(".", "__") if near else ""
                problems.append(Problem(name, "no such option", "environment", suggestion=hint))
                continue
            levels["environment"].update(make_layer({spelling: value}, f"environment {name}").settings)
        except AmbiguousNumber as error:
            problems.append(Problem(name, str(error), "environment"))
        except OptionError as error:
            problems.extend(error.problems)
    if problems:
        raise OptionError(problems)
    return {level: Layer(settings) for level, settings in levels.items() if settings}


def _environment_names() -> list[str]:
    from msctx.options.registry import OPTIONS

    return [spelling for option in OPTIONS.values() for spelling in option.spellings]

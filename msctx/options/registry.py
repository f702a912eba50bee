"""All options by name and spelling; checks what a user gives and turns it into a layer, or reports every problem at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from msctx.errors import Mark, OptionError, Problem, nearest
from msctx.options import ascend, debug, execution, gpu, own, session, system
from msctx.options.kinds import INVALID, BadValue, show
from msctx.options.layer import Layer, Setting
from msctx.options.option import Option

FAMILIES = (system, debug, execution, gpu, ascend, session, own)

OPTIONS: Mapping[str, Option] = MappingProxyType({o.name: o for family in FAMILIES for o in family.OPTIONS})
_SPELLINGS: dict[str, Option] = {spelling: o for o in OPTIONS.values() for spelling in o.spellings}
_DICTIONARIES = {s.rpartition(".")[0] for s in _SPELLINGS if "." in s}
"""Keys that hold a dictionary of options: gpu_config, session …"""

Marks = Callable[[tuple[str, ...]], Mark | None]
"""Gives the place in a file of the value at a path of keys; ``(..., "")`` asks for the key itself."""


def find(spelling: str) -> Option | None:
    """The option a dotted spelling means, or ``None``."""
    return _SPELLINGS.get(spelling)


def option_of(spelling: str) -> Option:
    """The option a dotted spelling means; an unknown one raises :class:`OptionError` with the nearest name."""
    if (option := find(spelling)) is None:
        raise OptionError([_unknown(spelling)])
    return option


def _unknown(spelling: str, where: str = "", mark: Mark | None = None) -> Problem:
    group, _, key = spelling.rpartition(".")
    if group in _DICTIONARIES:
        keys = [s.rpartition(".")[2] for s in _SPELLINGS if s.startswith(f"{group}.")]
        allowed = ", ".join(keys) if len(keys) < 20 else ""
        return Problem(spelling, f"{group} has no such key", where, allowed, nearest(key, keys), mark)
    hint = nearest(spelling, [*_SPELLINGS, *_DICTIONARIES, "preset"])
    return Problem(spelling, "unknown option", where, suggestion=hint, mark=mark)


def make_layer(values: Mapping[str, Any], origin: str, marks: Marks | None = None) -> Layer:
    """Check what was set in one place.

    Args:
        values: options by name; groups (``gpu_config={...}``) and namespaces (``session={...}``) are dictionaries, and dotted
            names (``"gpu_config.conv_allow_tf32"``) mean the same.
        origin: the place, as it is to be told: ``"set_context"``, ``"train.py:12"``.
        marks: for a file, where each value stands.

    Raises:
        OptionError: with every problem found; nothing was changed.
    """
    problems: list[Problem] = []
    settings: dict[str, Setting] = {}
    paths: dict[str, tuple[str, ...]] = {}
    for path, value in _flatten(values, ()):
        if value is INVALID:
            continue
        spelling = ".".join(map(str, path))
        mark = marks(path) if marks else None
        option = _SPELLINGS.get(spelling)
        if option is None:
            key_mark = marks((*path, "")) if marks else None
            problems.append(
                Problem(spelling, "needs a dictionary of options", origin, "{key: value}", mark=mark)
                if spelling in _DICTIONARIES
                else _unknown(spelling, origin, key_mark)
            )
            continue
        value, wrong = _check(option, value)
        if wrong:
            for at, bad in wrong:
                inside = marks((*path, *at)) if marks else None
                problems.append(Problem(".".join((spelling, *at)), bad.text, origin, bad.allowed, shown(bad), inside))
        elif spelling in settings and settings[spelling].value != value:
            problems.append(
                Problem(spelling, f"{value!r} contradicts {settings[spelling].value!r}; it is set twice", origin, mark=mark)
            )
        else:
            settings[spelling] = Setting(option, spelling, value, str(mark) if mark else origin)
            paths[spelling] = path
    for problem in contradictions(settings, origin):
        problems.append(replace(problem, mark=marks(paths[problem.path])) if marks else problem)
    if problems:
        raise OptionError(problems)
    return Layer(settings)


def _flatten(values: Mapping[str, Any], prefix: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in values.items():
        path = (*prefix, key)
        if isinstance(value, Mapping) and ".".join(map(str, path)) in _DICTIONARIES:
            yield from _flatten(value, path)
        else:
            yield path, value


def _check(option: Option, value: Any) -> tuple[Any, list[tuple[tuple[str, ...], BadValue]]]:
    """The canonical value, or what is wrong and where inside the value."""
    from pydantic import ValidationError

    try:
        return option.adapter.validate_python(value, strict=True), []
    except ValidationError as error:
        wrong = []
        for found in error.errors(include_url=False):
            at = tuple(str(part) for part in found["loc"] if part != "[key]")
            bad = found.get("ctx", {}).get("error")
            if found["input"] is None and isinstance(bad, BadValue):
                bad = BadValue("the value is empty", allowed=bad.allowed)
            allowed = "{key: value}" if found["type"] == "dict_type" else "a value of another type"
            own = BadValue(f"{show(found['input'])} is not of the right type", allowed=allowed)
            wrong.append((at, bad if isinstance(bad, BadValue) else own))
        return None, wrong


def shown(bad: BadValue) -> str:
    """A suggested value as it can be written; advice as it stands."""
    is_advice = isinstance(bad.suggestion, str) and (not bad.suggestion or " " in bad.suggestion)
    return bad.suggestion if is_advice else repr(bad.suggestion)


def contradictions(settings: Mapping[str, Setting], origin: str) -> Iterator[Problem]:
    """Two spellings of one option at the same place (the same device, the same layer) with different values."""
    seen: dict[tuple[str, str | None], Setting] = {}
    for setting in settings.values():
        first = seen.setdefault((setting.option.name, setting.device), setting)
        if first.value != setting.value:
            text = f"{setting.value!r} contradicts {first.spelling}={first.value!r}; they are one option"
            yield Problem(setting.spelling, text, origin)

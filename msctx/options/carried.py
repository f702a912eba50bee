"""MSCTX_PLAN: options that one process has read and checked, as a text for the processes that it starts."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from msctx._version import __version__
from msctx.errors import Diagnostic, OptionError
from msctx.options.kinds import Size
from msctx.options.layer import Layer, Setting
from msctx.options.registry import OPTIONS
from msctx.options.validation import check

VARIABLE = "MSCTX_PLAN"
FIELDS = ("spelling", "value", "origin", "content", "via")
LONGEST = 120_000
"""Bytes: Linux takes no longer text in one variable."""


def pack(layer: Layer, **more: Any) -> str:
    """A layer as text; *more*: what else its reader wants, as plain data. Paths become absolute, since children may go elsewhere.

    Raises:
        OptionError: it is too long for a variable of the environment.
    """
    settings = [
        {"option": one.option.name, **{field: getattr(one, field) for field in FIELDS}, "value": _absolute(one)}
        for one in layer.settings.values()
    ]
    text = json.dumps({"version": __version__, "settings": settings, **more}, separators=(",", ":"))
    if len(text.encode()) > LONGEST:
        longest = max(settings, key=lambda one: len(json.dumps(one)))["spelling"]
        raise OptionError([Diagnostic(str(longest), "is too long to be handed to another process in its environment")])
    return text


def _absolute(setting: Setting) -> Any:
    value, option = setting.value, setting.option
    if value and (option.names_file or option.is_output):
        return str(Path(value).expanduser().resolve())
    return f"{int(value)}B" if isinstance(value, Size) else value  # a bare number that is small would be a mistake


def read(environment: Mapping[str, str]) -> dict[str, Any]:
    """The content of the variable; empty: it is not set.

    Raises:
        OptionError: it is not what :func:`pack` makes, or is of another version of msctx.
    """
    if not (text := environment.get(VARIABLE)):
        return {}
    try:
        found = dict(json.loads(text))
        version = found["version"]
    except (ValueError, TypeError, KeyError):
        raise _wrong("is not what `msctx exec` writes") from None
    if version != __version__:
        package = Path(__file__).resolve().parents[1]
        raise _wrong(f"is of msctx {version}; this process has msctx {__version__}, in {package}: install the same for both")
    return found


def layer_of(environment: Mapping[str, str]) -> Layer:
    """The options in it, each with the origin that it had."""
    settings = {}
    for row in read(environment).get("settings", ()):
        try:
            setting = Setting(OPTIONS[row["option"]], *(row[field] for field in FIELDS))
        except (KeyError, TypeError):
            raise _wrong("is not what `msctx exec` writes") from None
        value, wrong = check(setting.option.type, setting.value)
        if wrong:
            raise _wrong(f"{setting.spelling}: {wrong[0].text}")
        settings[setting.spelling] = replace(setting, value=value)
    return Layer(settings)


def _wrong(text: str) -> OptionError:
    return OptionError([Diagnostic(VARIABLE, text, "environment", suggestion=f"unset {VARIABLE}, or start the program anew")])


def note(environment: Mapping[str, str], text: str) -> None:
    """Leave a line that a process has entered it, for whoever waits for one on this machine."""
    if seen := read(environment).get("seen"):
        with suppress(OSError):  # on another machine, or nobody waits any more
            place = os.open(seen, os.O_WRONLY | os.O_APPEND)
            os.write(place, f"{text}\n".encode())
            os.close(place)

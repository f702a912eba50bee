"""The checks of values that name files and directories, some with what must be in them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from msctx.errors import OptionError
from msctx.mindspore.checks import Is, Look, Nothing, Parts, is_a
from msctx.options import UNSET, find, is_dictionary, make_layer
from msctx.options.kinds import show


def _real(value: Any, look: Look) -> str:
    """The real path of a text."""
    if not isinstance(value, str):
        look.wrong(TypeError, is_a(value), "a path")
    try:
        return os.path.realpath(value)
    except (OSError, ValueError) as error:  # ValueError: a path that no system takes
        look.wrong(ValueError, f"{show(value)} is no path: {error}")


def directory(value: Any, look: Look) -> Any:
    """A directory that is there, or is made when the value is set."""
    if not isinstance(value, str) or not value.strip():
        look.wrong(ValueError, f"{show(value)} is not a path", "a directory")
    return _real(value, look)


def cache_directory(value: Any, look: Look) -> Any:
    """A directory that need not be there; empty text means in MindSpore that none is set."""
    if Is(str, RuntimeError)(value, look):
        return value
    look.note("empty text takes back what was set: it stands for the current directory")
    return UNSET


def print_file(value: Any, look: Look) -> Any:
    """A file; one that exists gets a new name with the time in it."""
    path = _real(value, look)
    if os.path.isdir(path):
        look.wrong(OSError, f"{show(value)} is a directory", "the path of a file")
    if not os.path.exists(path):
        return path
    later = f"{path}.{int(time.time())}"
    if os.path.exists(later):
        look.wrong(ValueError, f"{show(value)} is there already, and so is {os.path.basename(later)}")
    return later


def json_file(value: Any, look: Look) -> str:
    """A file that exists; its contents are read when it is set."""
    path = _real(value, look)
    if not os.path.isfile(path):
        look.wrong(ValueError, f"there is no file {show(value)} ({path})")
    return path


def env_config(value: Any, look: Look) -> Any:
    """A JSON file. MindSpore only warns of what it does not understand in it, so the rest is then set key by key."""
    path = json_file(value, look)
    try:
        make_layer({look.name: path}, look.where)
        return path
    except OptionError as error:
        problems = error.problems
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        look.problems += [(ValueError, problem) for problem in problems]
        raise Nothing from None
    if not isinstance(data, dict):
        look.drop(f"{show(data)} is not a dictionary: the contents of {path} are ignored")
    first = problems[0]
    text = f"not everything in the file is right ({first.mark or path}: {first.text})"
    look.note(f"{text}: what is right is set key by key, and get_context shows no path")
    options = Parts({look.name: UNSET})
    for section, part in data.items():
        inner = look.inside(section)
        with suppress(Nothing):
            if not is_dictionary(inner.name):
                inner.drop(f"{look.name} has no such key: it is ignored")
            if not isinstance(part, dict):
                inner.drop(f"{show(part)} is not a dictionary: it is ignored")
            for key in part:
                with suppress(Nothing):
                    options[f"{inner.name}.{key}"] = _env_key(key, part, inner.inside(key))
    return options


def _env_key(key: str, part: Mapping[str, Any], look: Look) -> Any:
    option = find(look.name)
    if option is not None and look.name != option.name and (same := option.name.rpartition(".")[2]) in part:
        look.drop(f"{same} is set too, and wins: this one is ignored")
    try:
        make_layer({look.name: part[key]}, look.where)
    except OptionError as error:
        look.drop(f"{error.problems[0].text}: it is ignored")
    return part[key]


def ini_file(value: Any, look: Look) -> Any:
    """A path that exists. MindSpore accepts a directory too, in which there is nothing to read."""
    path = _real(value, look)
    if not os.path.exists(path):
        look.wrong(ValueError, f"there is no file {show(value)} ({path})")
    if os.path.isdir(path):
        look.drop(f"{show(value)} is a directory, in which there is nothing to read: it is ignored")
    return value


def speed_up_file(value: Any, look: Look) -> Any:
    """A JSON file, or empty text for none. MindSpore's documentation allows None, its code does not."""
    if not isinstance(value, str):
        look.wrong(TypeError, is_a(value), 'a path, or "" for none')
    if value:
        json_file(value, look)
    return value

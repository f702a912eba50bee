"""MindSpore's module ``context``: set_context, get_context, and the object behind them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from msctx.dynamo import call_outside, untraced
from msctx.errors import Diagnostic, OptionError, nearest, searching
from msctx.mindspore import absent, state
from msctx.mindspore.checks import Nothing, Parts, has_type
from msctx.mindspore.errors import OptionTypeError, raise_first
from msctx.mindspore.keys import DEVICE, FLAT, GE_OPTIONS, GROUP_DEVICE, GROUPS, KEYS, NEVER_SET, SPEED_UP, Key
from msctx.notices import warn
from msctx.options import find, is_dictionary
from msctx.options.unsupported import LATER

GRAPH_MODE, PYNATIVE_MODE = 0, 1
STRICT, COMPATIBLE, LAX = 0, 1, 2
RELEASE, DEBUG = 0, 1

K_CONTEXT: _Context | None = None
"""What :func:`_context` returns; made at the first use."""


# --- set_context ------------------------------------------------------------------------------------------------------


@untraced
def _unchecked(**kwargs: Any) -> None:
    """:func:`set_context` without the check of types that comes before everything else."""
    call_outside(_set, kwargs, False)


@untraced
def set_context(**kwargs: Any) -> None:
    """Set options for the process, with MindSpore's names, values, exceptions and rules of which device has which option.

    Unlike in MindSpore all of them are set or none: an error names everything that is wrong, and nothing was changed. It is of
    the kind that MindSpore raises for the first mistake: types come first, then device_target, then the order of the call.

    Raises:
        TypeError: a value of the wrong type, or one that was read already and cannot be changed any more.
        ValueError: a wrong value, or an unknown key.
        RuntimeError: a value that passes MindSpore's checks in Python and not those in C++.
        OSError: ``print_file_path`` is a directory.
    """
    call_outside(_set, kwargs, True)


vars(set_context)["__wrapped__"] = _unchecked


@searching()
def _set(kwargs: dict[str, Any], typed: bool) -> None:
    _context()
    call = state.Call("ms.set_context")
    options: dict[str, Any] = {}
    checked = [name for name, value in kwargs.items() if not typed or _has_type(name, value, call)]
    for name in sorted(checked, key=lambda name: name != "device_target"):
        with suppress(Nothing):
            converted = _checked(name, kwargs[name], options, call)
            options |= converted if isinstance(converted, Parts) else {name: converted}
    call.raise_first()
    state.tell_all(call.notes)
    with _directory(options.get("save_graphs_path"), call.where):
        state.store(options, call.what)


def _has_type(name: str, value: Any, call: state.Call) -> bool:
    return name not in KEYS or has_type(value, KEYS[name].types, call.look(name))


def _checked(name: str, value: Any, options: dict[str, Any], call: state.Call) -> Any:
    """A value in msctx's form; *options*: what the call sets before it."""
    look, key = call.look(name), KEYS.get(name)
    if key is None:
        call.problems.append((ValueError, _unknown(name, call.where)))
        raise Nothing
    target = state.target() if state.set_by("set_device.device_target") else options.get("device_target", state.target())
    if reason := _not_here(key, target):
        look.drop(f"{reason}: it is skipped")
    if name == "mempool_block_size" and options.get("mode", get_value("mode")) == GRAPH_MODE:
        look.drop("MindSpore ignores it in GRAPH_MODE: it is skipped")
    converted = key.check(value, look)
    if key.kept_once_read and f"read {name}" in state.marks() and key.shows(converted) != (shown := get_value(name)):
        look.wrong(TypeError, f"it cannot be changed any more: get_context has read it, as {shown!r}")
    return converted


def _not_here(key: Key, target: str) -> str:
    """Why MindSpore does not look at a key with this device_target; ``""`` where it does."""
    if not key.targets or target in key.targets:
        return ""
    return f"MindSpore has it with device_target={' and '.join(key.targets)} alone, and that is {target}"


def _unknown(name: str, where: str) -> Diagnostic:
    if name in FLAT:
        group, key = FLAT[name]
        return Diagnostic(name, f"MindSpore takes it in {group} alone: {group}={{{key!r}: …}}", where)
    if name in LATER:
        return Diagnostic(name, f"{LATER[name]} has it, and msctx has no such option", where)
    if find(name) is not None or is_dictionary(name) or name == "preset":
        return Diagnostic(name, "MindSpore has no such key; msctx.set_context takes it", where)
    return Diagnostic(name, "unknown key", where, suggestion=nearest(name, KEYS))


@contextmanager
def _directory(path: str | None, where: str) -> Iterator[None]:
    """Make a directory, and remove it again if what follows fails."""
    made: list[str] = []
    try:
        if path is not None:
            _make(path, made, where)
        yield
    except BaseException:
        for folder in reversed(made):
            os.rmdir(folder)
        raise


def _make(path: str, made: list[str], where: str) -> None:
    missing = [path]
    while not os.path.exists(missing[-1]):
        missing.append(os.path.dirname(missing[-1]))
    for folder in reversed(missing[:-1]):
        try:
            os.mkdir(folder, mode=0o700 if folder == path else 0o777)
        except OSError as error:
            kind = ValueError if isinstance(error, PermissionError) else OSError
            raise_first([(kind, Diagnostic("save_graphs_path", f"the directory cannot be made: {error}", where))])
        made.append(folder)


# --- get_context ------------------------------------------------------------------------------------------------------


@untraced
def get_context(attr_key: str) -> Any:
    """The value of an option in force, in MindSpore's form: sizes are numbers of GB, O0 and O1 are 0 and 1, and so on.

    Raises:
        ValueError: MindSpore's get_context knows no such name.
    """
    return call_outside(_get, attr_key)


def _get(name: str) -> Any:
    _context()
    if not isinstance(name, str):
        where = state.origin("ms.get_context")
        raise OptionTypeError([Diagnostic("attr_key", f"{name!r} is not the name of an option", where, "str")])
    key, target = KEYS.get(name), state.target()
    if key is not None and (reason := _not_here(key, target)):
        warn(f"ms.get_context {name}", target, f"{name}: {reason}")
    value = get_value(name)
    if key is not None and key.kept_once_read:
        state.marks().add(f"read {name}")
    return value


def get_value(name: str) -> Any:
    """:func:`get_context` without what MindSpore remembers of it."""
    target = state.target()
    if name == "device_target":
        return target
    if name in GROUPS:
        return {key: value for key in GROUPS[name] if (value := _written(name, key)) is not None}
    if name in KEYS and not KEYS[name].hidden:
        key = KEYS[name]
        found = state.in_force(name, DEVICE[target])
        if found is not None:
            return key.shows(found.value)
        return key.default(target) if callable(key.default) else key.default
    if name in FLAT:
        group, inner = FLAT[name]
        value = _written(group, inner)
        return GROUPS[group][inner].default if value is None else GROUPS[group][inner].flat(value)
    if name in SPEED_UP:
        found = state.in_force(f"parallel_speed_up_json_path.{name}", "ascend")
        return SPEED_UP[name] if found is None else found.value
    if name in NEVER_SET:
        return NEVER_SET[name]
    raise OptionError([_unread(name)])


def _written(group: str, key: str) -> Any:
    """The value of a key of a dictionary as it is written there, or None where nobody set it."""
    device = GROUP_DEVICE[group]
    if key == "ge_options":
        parts = {level: state.in_force(f"{key}.{level}", device) for level in GE_OPTIONS}
        return {level: setting.value for level, setting in parts.items() if setting is not None} or None
    option = find(f"{group}.{key}")
    found = state.in_force(option.name, device) if option else None
    return None if found is None else GROUPS[group][key].shows(found.value)


def _unread(name: str) -> Diagnostic:
    where = state.origin("ms.get_context")
    if name in KEYS:
        return Diagnostic(name, "MindSpore's get_context does not know it: its value is ignored", where)
    for group, keys in GROUPS.items():
        if name in keys:
            return Diagnostic(name, f"MindSpore's get_context does not know it; {group} has it", where)
    if find(name) is not None:
        return Diagnostic(name, "MindSpore has no such key; msctx.get_context knows it", where)
    return Diagnostic(name, "unknown key", where, suggestion=nearest(name, [*KEYS, *FLAT, *SPEED_UP]))


# --- the object behind them -------------------------------------------------------------------------------------------


class _Context:
    """MindSpore's context as an object: every key as an attribute, and methods ``get_<key>`` and ``set_<key>`` for each.

    It holds nothing itself: all objects show one and the same state, which is that of msctx.
    """

    enable_debug_runtime = False

    def get_param(self, param: str) -> Any:
        return get_context(param)

    def set_param(self, param: str, value: Any) -> None:
        _unchecked(**{param: value})

    def __getattr__(self, name: str) -> Any:
        kind, _, key = name.partition("_")
        if kind in ("get", "set") and key in KEYS:
            return (lambda: get_context(key)) if kind == "get" else lambda value: _unchecked(**{key: value})
        try:
            return get_context(name)
        except OptionError:
            raise AttributeError(f"MindSpore's context has no {name!r} here") from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name in KEYS:
            _unchecked(**{name: value})
        else:
            object.__setattr__(self, name, value)


def _context() -> _Context:
    """The one object; a new one, over the same state, after ``K_CONTEXT = None``."""
    global K_CONTEXT
    state.marks()
    if K_CONTEXT is None:
        K_CONTEXT = _Context()
    return K_CONTEXT


globals().update(absent.OF_CONTEXT)

__all__ = [
    "COMPATIBLE",
    "GRAPH_MODE",
    "LAX",
    "PYNATIVE_MODE",
    "STRICT",
    "get_context",
    "set_context",
    *absent.OF_CONTEXT,
]

__getattr__ = absent.names(__name__, (*__all__, "DEBUG", "RELEASE", "K_CONTEXT"))

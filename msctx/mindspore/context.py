"""MindSpore's module ``context``: set_context, get_context, and the object behind them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from msctx.dynamo import call_outside, untraced
from msctx.errors import Diagnostic, OptionError, nearest, searching
from msctx.mindspore import absent, state
from msctx.mindspore.absent import (
    ParallelMode,
    get_auto_parallel_context,
    get_offload_context,
    get_ps_context,
    reset_auto_parallel_context,
    reset_ps_context,
    set_auto_parallel_context,
    set_offload_context,
    set_ps_context,
)
from msctx.mindspore.checks import DROP, Look, Note, Parts
from msctx.mindspore.errors import Found, OptionTypeError, raise_first
from msctx.mindspore.keys import DEVICE, FLAT, GROUP_DEVICE, GROUPS, KEYS, NEVER_SET, SPEED_UP, Inner, Key
from msctx.notices import tell
from msctx.options import find, is_dictionary
from msctx.options.unsupported import LATER

GRAPH_MODE, PYNATIVE_MODE = 0, 1
STRICT, COMPATIBLE, LAX = 0, 1, 2
RELEASE, DEBUG = 0, 1

K_CONTEXT: _Context | None = None
"""What :func:`_context` returns; made at the first use."""

WHAT = "ms.set_context"


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
    call = _Call(kwargs, typed)
    raise_first(call.found)
    state.tell_all(call.notes)
    with _directories([call.options[name] for name in call.options if name in KEYS and KEYS[name].made]):
        state.store(call.options, WHAT)


class _Call:
    """One call of set_context: what it sets, what is wrong with it, and the notes on it."""

    def __init__(self, kwargs: Mapping[str, Any], typed: bool) -> None:
        self.where = state.origin(WHAT)
        self.found: list[Found] = []
        self.notes: list[Note] = []
        self.options: dict[str, Any] = {}
        wrong = {name for name, value in kwargs.items() if typed and not self._has_type(name, value)}
        for name in sorted(kwargs, key=lambda name: name != "device_target"):
            if name not in wrong:
                self._take(name, kwargs[name])

    def _has_type(self, name: str, value: Any) -> bool:
        return name not in KEYS or self._look(name).type(value, KEYS[name].types)

    def _look(self, name: str) -> Look:
        return Look(name, self.where, self.found, self.notes)

    def _take(self, name: str, value: Any) -> None:
        look = self._look(name)
        key = KEYS.get(name)
        if key is None:
            self.found.append((ValueError, _unknown(name, self.where)))
        elif reason := self._skipped(name, key):
            look.drop(f"{reason}: it is skipped")
        elif (converted := key.check(value, look)) is not DROP:
            if key.kept_once_read and f"read {name}" in state.MARKS and converted != _value(name):
                shown = _shown(name, key)
                look.wrong(TypeError, f"it cannot be changed any more: get_context has read it, as {shown!r}")
            elif isinstance(converted, Parts):
                self.options.update(converted)
            else:
                self.options[name] = converted

    def _skipped(self, name: str, key: Key) -> str:
        """Why MindSpore does not look at a value at all."""
        target = self.options.get("device_target", state.target())
        if state.set_by("set_device.device_target"):
            target = state.target()
        if key.targets and target not in key.targets:
            return f"MindSpore has it with device_target={' and '.join(key.targets)} alone, and that is {target}"
        if name == "mempool_block_size" and self.options.get("mode", get_value("mode")) == GRAPH_MODE:
            return "MindSpore ignores it in GRAPH_MODE"
        return ""


def _unknown(name: str, where: str) -> Diagnostic:
    if name in FLAT:
        group, key = FLAT[name]
        return Diagnostic(name, f"MindSpore takes it in {group} alone: {group}={{{key!r}: …}}", where)
    if name in LATER:
        return Diagnostic(name, f"{LATER[name]} has it, and msctx has no such option", where)
    if find(name) is not None or is_dictionary(name) or name == "preset":
        return Diagnostic(name, "MindSpore has no such key; msctx.set_context takes it", where)
    return Diagnostic(name, "there is no such key", where, suggestion=nearest(name, KEYS))


@contextmanager
def _directories(paths: list[str]) -> Iterator[None]:
    """Make directories, and remove them again if what follows fails."""
    made: list[str] = []
    try:
        for path in paths:
            _make(path, made)
        yield
    except BaseException:
        for folder in reversed(made):
            os.rmdir(folder)
        raise


def _make(path: str, made: list[str]) -> None:
    missing = [path]
    while not os.path.exists(missing[-1]):
        missing.append(os.path.dirname(missing[-1]))
    for folder in reversed(missing[:-1]):
        try:
            os.mkdir(folder, mode=0o700 if folder == path else 0o777)
        except OSError as error:
            kind = ValueError if isinstance(error, PermissionError) else OSError
            problem = Diagnostic("save_graphs_path", f"the directory cannot be made: {error}", state.origin(WHAT))
            raise_first([(kind, problem)])
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
    key = KEYS.get(name)
    target = state.target()
    if key is not None and key.targets and target not in key.targets:
        text = f"{name}: MindSpore has it with device_target={' and '.join(key.targets)} alone, and that is {target}"
        tell(f"ms.get_context {name}", target, text)
    value = get_value(name)
    if key is not None and key.kept_once_read:
        state.MARKS.add(f"read {name}")
    return value


def get_value(name: str) -> Any:
    """:func:`get_context` without what MindSpore remembers of it."""
    if name == "device_target":
        return state.target()
    if name in GROUPS:
        return {key: value for key, inner in GROUPS[name].items() if (value := _written(name, key, inner)) is not None}
    if name in KEYS and not KEYS[name].hidden:
        return _shown(name, KEYS[name])
    if name in FLAT:
        group, key = FLAT[name]
        inner = GROUPS[group][key]
        value = _written(group, key, inner)
        return inner.default if value is None else inner.flat(value)
    if name in SPEED_UP:
        found = state.in_force(f"parallel_speed_up_json_path.{name}", "ascend")
        return SPEED_UP[name] if found is None else found.value
    if name in NEVER_SET:
        return NEVER_SET[name]
    raise OptionError([_unread(name)])


def _value(name: str) -> Any:
    """The value of a key of set_context in force, in msctx's form; its default where nobody set it."""
    found = state.in_force(name, DEVICE[state.target()])
    if found is not None:
        return found.value
    option = find(name)
    default = KEYS[name].default
    return default(state.target()) if callable(default) else option.default if option else None


def _shown(name: str, key: Key) -> Any:
    target = state.target()
    found = state.in_force(name, DEVICE[target])
    if found is None:
        return key.default(target) if callable(key.default) else key.default
    return key.shows(found.value)


def _written(group: str, key: str, inner: Inner) -> Any:
    """The value of a key of a dictionary as it is written there, or None where nobody set it."""
    device = GROUP_DEVICE[group]
    if inner.levels:
        parts = {level: state.in_force(f"{key}.{level}", device) for level in inner.levels}
        return {level: setting.value for level, setting in parts.items() if setting is not None} or None
    found = state.in_force(inner.option or key, device)
    return None if found is None else inner.shows(found.value)


def _unread(name: str) -> Diagnostic:
    where = state.origin("ms.get_context")
    if name in KEYS:
        return Diagnostic(name, "MindSpore's get_context does not know it: its value is ignored", where)
    for group, keys in GROUPS.items():
        if name in keys:
            return Diagnostic(name, f"MindSpore's get_context does not know it; {group} has it", where)
    if find(name) is not None:
        return Diagnostic(name, "MindSpore has no such key; msctx.get_context knows it", where)
    return Diagnostic(name, "there is no such key", where, suggestion=nearest(name, [*KEYS, *FLAT, *SPEED_UP]))


# --- the object behind them -------------------------------------------------------------------------------------------


class _Context:
    """MindSpore's context as an object: every key as an attribute, and a method ``set_<key>`` for each.

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
    state.start()
    if K_CONTEXT is None:
        K_CONTEXT = _Context()
    return K_CONTEXT


__all__ = [
    "COMPATIBLE",
    "GRAPH_MODE",
    "LAX",
    "PYNATIVE_MODE",
    "STRICT",
    "ParallelMode",
    "get_auto_parallel_context",
    "get_context",
    "get_offload_context",
    "get_ps_context",
    "reset_auto_parallel_context",
    "reset_ps_context",
    "set_auto_parallel_context",
    "set_context",
    "set_offload_context",
    "set_ps_context",
]

__getattr__ = absent.names("mindspore.context", dict.fromkeys((*__all__, "DEBUG", "RELEASE", "K_CONTEXT")))

"""MindSpore's module ``context``: set_context and get_context."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from msctx.errors import Diagnostic, OptionError, nearest
from msctx.mindspore import absent_names
from msctx.mindspore import keys_and_rules as keys
from msctx.mindspore.errors import OptionTypeError
from msctx.mindspore.keys_and_rules import FLAT, GROUP_DEVICE, GROUPS, KEYS, Key
from msctx.notices import warn
from msctx.options import UNSET, find, make_layer
from msctx.options.registry import instead, is_dictionary, later
from msctx.outside_dynamo import outside_dynamo
from msctx.plan import TARGETS
from msctx.setter_functions import JIT_CONFIG, JIT_LEVELS, wrong_in_jit_config

GRAPH_MODE, PYNATIVE_MODE = 0, 1
STRICT, COMPATIBLE, LAX = 0, 1, 2
RELEASE, DEBUG = 0, 1


@outside_dynamo
def set_context(**kwargs: Any) -> None:
    """Set options for the process, with MindSpore's keys and its rules of which device has which key.

    Unlike in MindSpore all of them are set or none: an error names everything that is wrong, and nothing was changed.

    Raises:
        TypeError: a value of the wrong type.
        ValueError: a wrong value, or an unknown key.
    """
    where = keys.origin("ms.set_context")
    types: list[Diagnostic] = []
    values: list[Diagnostic] = []
    notes: list[str] = []
    options: dict[str, Any] = {}
    target = kwargs.get("device_target")
    if target is None or keys.set_by("set_device.device_target"):
        target = keys.target()
    target = "Ascend" if target == "Davinci" else target
    for name, value in kwargs.items():
        key = KEYS.get(name)
        if name in JIT_CONFIG:
            name, value = "jit_config", {name: value}
        if name == "jit_config" and isinstance(value, dict):
            wrong = [problem for item in value.items() for problem in wrong_in_jit_config(*item, where)]
            values += wrong
            if not wrong and "jit_level" in value:
                level = JIT_LEVELS[value["jit_level"]]
                options["enable_graph_kernel"] = kwargs.get("enable_graph_kernel", level)
                if options["enable_graph_kernel"] != level:
                    notes.append(f"{name}.jit_level: enable_graph_kernel in the same call wins over it")
            notes += [f"{name}.infer_boost: msctx has no such option: leave it out"] * ("infer_boost" in value)
        elif name == "jit_config":
            types += keys.wrong_type(name, value, (dict,), where)
        elif key is None and later(name):
            notes.append(_ignored(name))
        elif key is None:
            values.append(_unknown(name, where))
        elif wrong := keys.wrong_type(name, value, key.types, where):
            types += wrong
        elif reason := _not_here(key, target):
            notes.append(f"{name}: {reason}: it is skipped")
        elif key.ignored:
            notes.append(f"{name}: {key.ignored}")
        elif name == "compile_cache_path" and not value:  # MindSpore's word for none
            options[name] = UNSET
        else:
            options[name] = _known(name, value, notes)
            values += _problems_of({name: options[name]}, where)
    if types:
        raise OptionTypeError([*types, *values])
    if values:
        raise OptionError(values)
    keys.tell_all(notes)
    keys.store(options, "ms.set_context")


def _ignored(name: str) -> str:
    last = name.rpartition(".")[2]
    return "; ".join(filter(None, (f"{name}: {later(last)}: it is ignored", instead(last))))


def _known(name: str, value: Any, notes: list[str]) -> Any:
    """A value in msctx's form, without what MindSpore accepts and msctx has nothing for."""
    if isinstance(value, bool) and KEYS[name].types == (int,):
        return int(value)
    if name == "graph_kernel_flags":
        wrong = {flag: found for flag in value.split() if (found := _problems_of({name: flag}, ""))}
        notes += [f"{name}: {flag!r} is ignored: {found[0].text}" for flag, found in wrong.items()]
        return " ".join(flag for flag in value.split() if flag not in wrong)
    if name in GROUPS:
        unheld = [key for key in value if key not in GROUPS[name] and later(key)]
        notes += (_ignored(f"{name}.{key}") for key in unheld)
        return {key: inner for key, inner in value.items() if key not in unheld}
    return value


def _problems_of(options: Mapping[str, Any], where: str) -> Sequence[Diagnostic]:
    """What msctx's options say to values."""
    try:
        make_layer(options, where)
    except OptionError as error:  # MindSpore takes no other words for values
        return [_in_its_words(problem) for problem in error.problems]
    return ()


def _in_its_words(problem: Diagnostic) -> Diagnostic:
    others = re.findall(r" \(also ([^)]*)\)", problem.allowed)
    is_other = problem.suggestion.strip("'") in ", ".join(others).split(", ")
    allowed = re.sub(r" \(also [^)]*\)", "", problem.allowed)
    return replace(problem, allowed=allowed, suggestion="" if is_other else problem.suggestion)


def _not_here(key: Key, target: str) -> str:
    """Why MindSpore does not look at a key with this device_target; ``""`` where it does."""
    if not key.targets or target in key.targets:
        return ""
    return f"MindSpore has it only with device_target={' and '.join(key.targets)}, and that is {target}"


def _unknown(name: str, where: str) -> Diagnostic:
    if name in FLAT:
        group, key = FLAT[name]
        return Diagnostic(name, f"MindSpore takes it in {group} alone: {group}={{{key!r}: …}}", where)
    if (option := find(name)) is not None and option.replaced_by:
        return Diagnostic(name, f"deprecated and without effect; instead: {option.replaced_by}", where)
    if option is not None or is_dictionary(name) or name == "preset":
        return Diagnostic(name, "MindSpore has no such key; msctx.set_context takes it", where)
    return Diagnostic(name, "unknown key", where, suggestion=instead(name) or nearest(name, KEYS))


@outside_dynamo
def get_context(attr_key: str) -> Any:
    """The value of an option in force, in MindSpore's form: sizes are numbers of GB, O0 and O1 are 0 and 1, and so on. ``jit_config``
    is read from ``enable_graph_kernel``: O2 has become O1.

    Raises:
        ValueError: MindSpore's get_context knows no such name.
    """
    name, where = attr_key, keys.origin("ms.get_context")
    if wrong := keys.wrong_type("attr_key", name, (str,), where):
        raise OptionTypeError(wrong)
    target = keys.target()
    if name in KEYS and (reason := _not_here(KEYS[name], target)) and keys.in_force(name, TARGETS[target]) is None:
        warn(f"{name}: {reason}")
    if name == "jit_config":
        level = keys.in_force("enable_graph_kernel", TARGETS[target])
        return {"jit_level": "O1" if level.value else "O0"} if level else {}
    if (name in KEYS and not KEYS[name].ignored) or name in FLAT:
        return get_value(name)
    if name in KEYS or find(name):
        raise OptionError([Diagnostic(name, "MindSpore's get_context does not know it", where)])
    hint = instead(name) or nearest(name, [*KEYS, *FLAT])
    raise OptionError([Diagnostic(name, later(name) or "unknown key", where, suggestion=hint)])


def get_value(name: str) -> Any:
    """:func:`get_context` of a name that it knows."""
    target = keys.target()
    if name == "device_target":
        return target
    if name in GROUPS:
        return {key: value for key in GROUPS[name] if (value := _shown(name, key, UNSET)) is not UNSET}
    if name in FLAT:
        return _shown(*FLAT[name], GROUPS[FLAT[name][0]][FLAT[name][1]].default)
    key, found = KEYS[name], keys.in_force(name, TARGETS[target])
    if found is not None:
        return key.shows(found.value)
    return key.default(target) if callable(key.default) else key.default


def _shown(group: str, key: str, unset: Any) -> Any:
    option = find(f"{group}.{key}")
    found = keys.in_force(option.name, GROUP_DEVICE[group]) if option else None
    return unset if found is None else GROUPS[group][key].shows(found.value)


globals().update(absent_names.OF_CONTEXT)
__getattr__ = partial(absent_names.no_attribute, __name__)

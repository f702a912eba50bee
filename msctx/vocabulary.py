"""MindSpore's newer vocabulary (device_context, runtime, set_device …): functions made from the names that options declare.

Each function sets one option for the process, as ``set_context`` does, and :func:`msctx.reset_context` takes it back.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from msctx.context import get_context, set_options
from msctx.options import OPTIONS, UNSET, Option

ARGUMENTS = {
    "threads_num": "num",
    "dispatch_threads_num": "threads_num",
    "conv_fprop_algo": "mode",
    "conv_dgrad_algo": "mode",
    "conv_wgrad_algo": "mode",
    "precision_mode": "mode",
    "op_precision_mode": "path",
    "aoe_tune_mode": "tune_mode",
    "aoe_job_type": "config",
    "execute_timeout": "op_timeout",
}
"""Function → what MindSpore calls its one argument; the others have ``value``."""


def names(root: str) -> dict[str, Option]:
    """The dotted names below *root* (``"device_context"``) under which options can be set, with their options."""
    return {name: option for option in OPTIONS.values() for name in option.also if name.startswith(f"{root}.")}


def build(module: ModuleType, root: str, function: Callable[[str, Option], Any]) -> None:
    """Fill a module with the functions of the names below *root*; what lies between are modules, which can be imported."""
    for name, option in names(root).items():
        *between, last = name.split(".")[1:]
        at: Any = module
        for part in between:
            if not hasattr(at, part):
                inner = ModuleType(f"{at.__name__}.{part}", f"MindSpore's {root}.{part}, implemented by msctx.")
                sys.modules[inner.__name__] = inner
                setattr(at, part, inner)
            at = getattr(at, part)
        if not isinstance(at, ModuleType):  # a function of several options (runtime.set_memory) is written out
            continue
        if not hasattr(at, last):  # not written out there
            setattr(at, last, describe(function(name, option), f"{at.__name__}.{last}", option))


def describe(function: Any, name: str, option: Option) -> Any:
    """Give a function its name, and the help of the option that it sets."""
    function.__module__, _, function.__name__ = name.rpartition(".")
    function.__qualname__ = function.__name__
    function.__doc__ = f"{option.help}\n\nSets the option ``{option.name}``; ``msctx options {option.name}`` shows more."
    return function


def setter(name: str, option: Option, store: Callable[[str, Any], None] | None = None) -> Callable[..., None]:
    """The function that sets one option under one of its names."""
    argument = ARGUMENTS.get(name.rpartition(".")[2], "value")

    def function(*values: Any, **named: Any) -> None:
        given = [*values, *named.values()]
        if len(given) != 1 or set(named) - {argument, "value"}:
            raise TypeError(f"{name}() takes one value: {name}({argument})")
        store(name, given[0]) if store else set_options({name: given[0]}, name)

    parameter = inspect.Parameter(argument, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    shown: Any = function
    shown.__signature__ = inspect.Signature([parameter], return_annotation=None)
    return function


def set_device(device_target: str, device_id: int | None = None) -> None:
    """The device that work is meant for: ``"CPU"``, ``"GPU"`` or ``"Ascend"``, and which one of its kind."""
    options: dict[str, Any] = {"set_device.device_target": device_target}
    if device_id is not None:
        options["set_device.device_id"] = device_id
    set_options(options, "set_device")


def get_current_device() -> tuple[str | None, int]:
    """The device set by ``set_device`` or ``set_context``: (target, id); the target is ``None`` when nobody set one."""
    return get_context("device_target"), get_context("device_id")


def set_deterministic(deterministic: bool) -> None:
    """``deterministic="ON"`` or ``"OFF"`` by a boolean."""
    set_options({"set_deterministic": deterministic}, "set_deterministic")


def set_recursion_limit(recursion_limit: int = 1000) -> None:
    """``max_call_depth``: how deep module calls may nest."""
    set_options({"set_recursion_limit": recursion_limit}, "set_recursion_limit")


def launch_blocking() -> None:
    """``pynative_synchronize=True``: wait for the device after each operator."""
    set_options({"runtime.launch_blocking": True}, "runtime.launch_blocking")


def set_memory(increase_size: Any = UNSET, max_size: Any = UNSET, optimize_level: Any = UNSET, **others: Any) -> None:
    """The memory options by their newer names.

    Args:
        increase_size: ``mempool_block_size``, e.g. ``"2GB"``.
        max_size: ``max_device_memory``, e.g. ``"8GB"``.
        optimize_level: ``memory_optimize_level``, ``"O0"`` or ``"O1"``.
    """
    named = {"increase_size": increase_size, "max_size": max_size, "optimize_level": optimize_level, **others}
    options = {f"runtime.set_memory.{name}": value for name, value in named.items() if value is not UNSET}
    if not options:
        raise TypeError("set_memory() takes at least one of increase_size, max_size, optimize_level")
    set_options(options, "runtime.set_memory")

"""MindSpore's newer vocabulary (device_context, runtime, set_device …): functions made from the names that options declare.

Each function sets one option for the process, as ``set_context`` does, and :func:`msctx.reset_context` takes it back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from msctx import devices
from msctx.context import get_context, set_options
from msctx.errors import Diagnostic, Mark, nearest
from msctx.notices import warn
from msctx.options import OPTIONS, UNSET, Option, device_of, option_of
from msctx.options.kinds import show

ARGUMENTS = {
    "threads_num": "num",
    "dispatch_threads_num": "threads_num",
    **dict.fromkeys(("conv_fprop_algo", "conv_dgrad_algo", "conv_wgrad_algo", "precision_mode"), "mode"),
    "op_precision_mode": "path",
    "aoe_tune_mode": "tune_mode",
    "aoe_job_type": "config",
    "execute_timeout": "op_timeout",
    "set_deterministic": "deterministic",
    "set_recursion_limit": "recursion_limit",
}
"""Function → what MindSpore calls its one argument; the others have ``value``."""
JIT_LEVELS = {"O0": False, "O1": True, "O2": True}
"""MindSpore's jit_level → enable_graph_kernel: whether operators are fused."""
JIT_CONFIG = {"jit_level": [*JIT_LEVELS], "infer_boost": ["on", "off"]}
"""The keys of MindSpore's jit_config, with their values."""
DEFAULTS = {"set_recursion_limit": 1000, "runtime.launch_blocking": True}
Store = Callable[[str, Any], None]
"""Sets an option by one of its names."""


def wrong_in_jit_config(key: Any, value: Any, where: str, mark: Mark | None = None) -> list[Diagnostic]:
    """The problem of a key of jit_config, or of its value, that MindSpore does not take."""
    path = f"jit_config.{key}"
    if key not in JIT_CONFIG:
        hint = nearest(str(key), JIT_CONFIG)
        return [Diagnostic(path, "jit_config has no such key", where, ", ".join(JIT_CONFIG), hint, mark)]
    if value not in JIT_CONFIG[key]:
        return [Diagnostic(path, f"{show(value)} is not allowed", where, ", ".join(JIT_CONFIG[key]), mark=mark)]
    return []


def names(root: str) -> dict[str, Option]:
    """The dotted names below *root* (``"device_context"``) under which options can be set, with their options."""
    return {name: option for option in OPTIONS.values() for name in option.also if name.startswith(f"{root}.")}


def build(module: ModuleType, root: str, *store: Store) -> None:
    """Fill a module with the functions of the names below *root*; what lies between are modules, which can be imported."""
    for name in names(root):
        *between, last = name.split(".")[1:]
        at: Any = module
        for part in between:
            if not hasattr(at, part):
                inner = ModuleType(f"{at.__name__}.{part}", f"MindSpore's {root}.{part}, implemented by msctx.")
                sys.modules[inner.__name__] = inner
                setattr(at, part, inner)
            at = getattr(at, part)
        if isinstance(at, ModuleType) and not hasattr(at, last):  # a function of several options (set_memory) is written out
            setattr(at, last, setter(name, at.__name__, *store))


def setter(name: str, module: str, store: Store | None = None) -> Callable[..., None]:
    """The function of a module that sets one option under one of its names."""
    last, option = name.rpartition(".")[2], option_of(name)
    argument = ARGUMENTS.get(last, "value")

    def function(*values: Any, **named: Any) -> None:
        given = [*values, *named.values()] or ([DEFAULTS[name]] if name in DEFAULTS else [])
        if len(given) != 1 or set(named) - {argument, "value"}:
            raise TypeError(f"{name}() takes one value: {name}({argument})")
        if store is None and device_of(name) not in (None, *devices.here()):
            warn(f"{name} acts only on another device; msctx.set_context({option.name}=…) acts on each that has it")
        store(name, given[0]) if store else set_options({name: given[0]}, name)

    function.__module__, function.__name__, function.__qualname__ = module, last, last
    function.__doc__ = f"{name}({argument})\n\n{option.help}\n\n``msctx options {option.name}`` shows more."
    return function


set_deterministic = setter("set_deterministic", __name__)
set_recursion_limit = setter("set_recursion_limit", __name__)


def set_device(device_target: str, device_id: int | None = None) -> None:
    """The device that work is meant for: ``"CPU"``, ``"GPU"`` or ``"Ascend"``, and which one of its kind."""
    options: dict[str, Any] = {"set_device.device_target": device_target}
    if device_id is not None:
        options["set_device.device_id"] = device_id
    set_options(options, "set_device")


def get_current_device() -> tuple[str | None, int]:
    """The device set by ``set_device`` or ``set_context``: (target, id); the target is ``None`` when nobody set one."""
    return get_context("device_target"), get_context("device_id")


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

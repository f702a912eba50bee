"""MindSpore's functions of the top level: ``set_device`` and its like, and ``jit`` by torch.compile."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from msctx.errors import Diagnostic
from msctx.mindspore import keys_and_rules as keys
from msctx.mindspore.context import get_value
from msctx.mindspore.errors import OptionRuntimeError, OptionTypeError
from msctx.options.switch_values import Compilation
from msctx.outside_dynamo import outside_dynamo
from msctx.setter_functions import JIT_LEVELS, setter


class DeviceInfo(NamedTuple):
    """A device: ``device_target`` and ``device_id``."""

    device_target: str
    device_id: int


@outside_dynamo
def set_device(device_target: str, device_id: int | None = None) -> None:
    """The device that work is meant for. It can be set once; with the same values again, as often as one likes.

    A target that is not on this machine is planned: entering a context raises.

    Raises:
        TypeError: wrong types.
        ValueError: an unknown target, or a wrong number.
        RuntimeError: another device was set before.
    """
    where = keys.origin("ms.set_device")
    wrong = keys.wrong_type("device_target", device_target, (str,), where)
    if wrong := wrong + keys.wrong_type("device_id", device_id, (int, type(None)), where):
        raise OptionTypeError(wrong)
    given = DeviceInfo(device_target, int(device_id or 0))
    before, number = keys.set_by("set_device.device_target"), keys.set_by("set_device.device_id")
    if before is not None and given != (before.value, number.value if number else 0):
        raise OptionRuntimeError([Diagnostic("ms.set_device", f"{tuple(given)}: it can be set only once", where)])
    options: dict[str, Any] = {"set_device.device_target": device_target}
    if device_id is not None:
        options["set_device.device_id"] = given.device_id
    keys.store(options, "ms.set_device")


def get_current_device() -> DeviceInfo:
    """The device in force: ``(device_target, device_id)``."""
    return DeviceInfo(keys.target(), get_value("device_id"))


set_deterministic = outside_dynamo(setter("set_deterministic", __name__, keys.set_one))
set_recursion_limit = outside_dynamo(setter("set_recursion_limit", __name__, keys.set_one))


@outside_dynamo
def set_seed(seed: int) -> None:
    """Seed Python, NumPy and torch on every device.

    Raises:
        TypeError: not a number.
        ValueError: negative, or more than 32 bits.
    """
    _seed(seed, "ms.set_seed")


@outside_dynamo
def manual_seed(seed: int) -> Any:
    """As :func:`set_seed`, though MindSpore's seeds only its default generator; returns torch's default generator."""
    from torch import default_generator

    _seed(seed, "ms.manual_seed")
    return default_generator


def _seed(seed: int, what: str) -> None:
    if wrong := keys.wrong_type("seed", seed, (int,), keys.origin(what)):
        raise OptionTypeError(wrong)
    keys.store({"seed": seed}, what)


def get_seed() -> int | None:
    """The seed in force; None when nobody set one."""
    setting = keys.in_force("seed", "cpu")
    return None if setting is None else setting.value


def _check(name: str, value: Any) -> None:
    """Raise for what MindSpore's ``jit`` does not take."""
    takes = {"jit_level": ("", *JIT_LEVELS), "dynamic": (0, 1), "fullgraph": (False, True)}.get(name, (value,))
    if name not in (*keys.IGNORED_BY_JIT, "jit_level", "dynamic", "fullgraph"):
        raise TypeError(f"jit() got an unexpected keyword argument {name!r}")
    if type(value) is not (kind := type(takes[0])):
        raise TypeError(f"For 'jit', the parameter {name!r} must be {kind.__name__}, but got {type(value).__name__}.")
    if value not in takes:
        raise ValueError(f"For 'jit', the parameter {name!r} must be one of {[*takes]}, but got {value}.")


def jit(
    function: Callable[..., Any] | None = None,
    *,
    jit_level: str = "",
    dynamic: int = 0,
    fullgraph: bool = False,
    **options: Any,
) -> Any:
    """Compile a function, in GRAPH_MODE and in PYNATIVE_MODE alike, as MindSpore's ``jit`` does.

    Of a module, the result is a function that runs its compiled call, hooks included.

    Args:
        jit_level: ``"O0"`` runs an operator at a time; ``"O1"`` and ``"O2"`` fuse them; ``""``: what the context says.
        dynamic: 1 compiles for any shapes.
        fullgraph: what cannot be captured is an error.
        options: ``jit_config``, a dictionary, may hold ``jit_level``. What concerns MindSpore's own compiler alone, such as
            ``capture_mode`` and ``backend``, is ignored with a warning.

    Raises:
        ValueError, TypeError: a word or a type that MindSpore does not take.
    """
    from torch import nn

    from msctx.graph import graph_mode

    config = options.get("jit_config") or {}
    for given in ({"jit_level": jit_level, "dynamic": dynamic, "fullgraph": fullgraph}, options, config):
        for item in given.items():
            _check(*item)
    jit_level = jit_level or config.get("jit_level", "")
    named = [name for name, value in options.items() if value is not None and name != "jit_config"]
    named += [f"jit_config.{name}" for name in config if name != "jit_level"]
    argument = "it is read only as an argument of jit, and ignored here"
    why = {"jit_config.dynamic": argument, "jit_config.fullgraph": argument}
    others = "only MindSpore's compiler has this setting, and it is ignored"
    keys.tell_all([f"ms.jit({name}): {why.get(name, others)}" for name in named])
    if function is None:
        return functools.partial(jit, jit_level=jit_level, dynamic=dynamic, fullgraph=fullgraph)
    if not callable(function):
        raise TypeError(f"For 'jit', the parameter 'function' must be a function, but got {type(function).__name__}.")

    def own(wanted: Compilation) -> Compilation:
        shapes = replace(wanted.shapes, dynamic=True) if dynamic else wanted.shapes
        fused = JIT_LEVELS[jit_level] if jit_level else wanted.fused
        return replace(wanted, whole=wanted.whole or fullgraph, shapes=shapes, fused=fused)

    called = _call_of(function) if isinstance(function, nn.Module) else function
    return graph_mode.jit_as(called, own, in_pynative_mode=True)


def _call_of(module: Callable[..., Any]) -> Callable[..., Any]:
    """Dynamo passes over the call that PyTorch gives modules, but not over a function that calls one."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return module(*args, **kwargs)

    name = type(module).__name__
    code = call.__code__.replace(co_name=name)  # of its own: Dynamo keeps and counts what it compiled by code
    named = types.FunctionType(code, globals(), name, None, call.__closure__)
    named.__qualname__ = name
    return named

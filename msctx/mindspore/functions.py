"""The functions of MindSpore 2.5 and later that set one option each: their arguments and rules, one row per function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from msctx.dynamo import outside_dynamo
from msctx.mindspore import keys, state
from msctx.mindspore.checks import Check, Look, Nothing, Number, OneOf
from msctx.mindspore.files import ini_file
from msctx.options import UNSET, Option, device_of, find
from msctx.vocabulary import describe


@dataclass(frozen=True, slots=True)
class Function:
    """One function with one argument.

    Attributes:
        argument: what it calls its argument.
        check: its check.
        wanted: the type that its decorator requires, unless it is None.
        target: the only device_target that accepts it; on others the value is ignored, with a warning at each call.
        once: a second call is an error; on Ascend not one with the value that is in force.
        checked_first: a wrong value in a second call is reported as such.
        default: a call with this value does not count as one.
    """

    argument: str
    check: Check
    wanted: type = object
    target: str = ""
    once: bool = False
    checked_first: bool = False
    default: Any = UNSET


def _bool(value: Any, look: Look) -> Any:
    """What is left of a bool's check after the decorator: None, at which the C++ side raises."""
    return value if isinstance(value, bool) else look.wrong(TypeError, f"{value!r} is not a bool", "True, False")


def _gpu(argument: str, check: Check, wanted: type = object) -> Function:
    return Function(argument, check, wanted, target="GPU")


def _ascend(argument: str, check: Check, wanted: type = object, **rules: Any) -> Function:
    return Function(argument, check, wanted, target="Ascend", once=True, **rules)


THREADS = Number(1, plain=True, most=keys.THREADS)

FUNCTIONS: Mapping[str, Function] = {
    "runtime.dispatch_threads_num": Function("threads_num", THREADS, int, once=True),
    "set_recursion_limit": Function("recursion_limit", Number(1, plain=True, most=keys.DEPTH)),
    "set_deterministic": Function("deterministic", _bool, bool, once=True),
    "device_context.cpu.op_tuning.threads_num": Function("num", THREADS, int, once=True),
    "device_context.gpu.op_precision.matmul_allow_tf32": _gpu("value", _bool, bool),
    "device_context.gpu.op_precision.conv_allow_tf32": _gpu("value", _bool, bool),
    "device_context.gpu.op_tuning.conv_fprop_algo": _gpu("mode", keys.GPU_CONFIG["conv_fprop_algo"].check),
    "device_context.gpu.op_tuning.conv_dgrad_algo": _gpu("mode", keys.GPU_CONFIG["conv_dgrad_algo"].check),
    "device_context.gpu.op_tuning.conv_wgrad_algo": _gpu("mode", keys.GPU_CONFIG["conv_wgrad_algo"].check),
    "device_context.ascend.op_precision.precision_mode": _ascend("mode", keys.PRECISION_MODES),
    "device_context.ascend.op_precision.op_precision_mode": _ascend("path", ini_file, str),
    "device_context.ascend.op_precision.matmul_allow_hf32": _ascend("value", keys.TRUTH, checked_first=True),
    "device_context.ascend.op_precision.conv_allow_hf32": _ascend("value", keys.TRUTH, checked_first=True),
    "device_context.ascend.op_tuning.op_compile": _ascend("value", OneOf(keys.JIT_COMPILE, kind=TypeError), checked_first=True),
    "device_context.ascend.op_tuning.aoe_tune_mode": _ascend("tune_mode", keys.KEYS["aoe_tune_mode"].check),
    "device_context.ascend.op_tuning.aoe_job_type": _ascend("config", keys.AOE_CONFIG["job_type"].check, default="2"),
    "device_context.ascend.op_debug.execute_timeout": _ascend("op_timeout", Number(0), int, default=900),
}
"""msctx's name of the function (``Option.also``) → its rules."""


def described_setter(name: str) -> Callable[..., None]:
    """The function of a row with its help, for MindSpore's top level or one of its modules."""
    option = find(name)
    assert option is not None, name
    described: Callable[..., None] = describe(setter(name, option), f"msctx.mindspore.{name}", option)
    return described


def setter(name: str, option: Option) -> Callable[..., None]:
    """The function of a row."""
    row = FUNCTIONS[name]
    default = 1000 if name == "set_recursion_limit" else inspect.Parameter.empty
    parameter = inspect.Parameter(row.argument, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)
    signature = inspect.Signature([parameter])

    def function(*args: Any, **kwargs: Any) -> None:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            raise TypeError(f"ms.{name}() takes one argument, {row.argument}") from None
        bound.apply_defaults()
        _call(name, option, row, bound.arguments[row.argument])

    shown: Any = function
    shown.__signature__ = signature
    return outside_dynamo(function)


def _call(name: str, option: Option, row: Function, value: Any) -> None:
    call = state.Call(f"ms.{name}")
    call.check_types(**{row.argument: (value, row.wanted)})
    if row.target and (here := state.target()) != row.target:
        state.report(
            f"{call.what}: device_target is {here}, and MindSpore takes this with {row.target} alone: the value is ignored"
        )
        return
    converted = UNSET
    with suppress(Nothing):
        converted = row.check(value, call.look(row.argument))
    in_force = state.in_force(option.name, device_of(name) or "cpu")
    if row.target == "Ascend" and in_force is not None and in_force.value == converted:
        return
    before = state.set_by(name)
    if row.checked_first:
        call.raise_first()
    if row.once and before is not None and before.value != row.default:
        call.refuse_again()
    call.raise_first()
    state.tell_all([note._replace(name=f"{name}({note.name})") for note in call.notes])
    if converted is not UNSET:
        state.store({name: converted}, call.what)

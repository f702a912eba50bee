"""The functions of MindSpore 2.5 and later that set one option each: their arguments and rules, one row per function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from msctx.dynamo import outside_dynamo
from msctx.errors import Diagnostic, StrictError
from msctx.mindspore import keys, state
from msctx.mindspore.checks import DROP, Check, Look, Note, Number, OneOf
from msctx.mindspore.errors import Found, OptionRuntimeError, raise_first
from msctx.mindspore.files import ini_file
from msctx.options import UNSET, Option, device_of, find


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One function with one argument.

    Attributes:
        argument: what it calls its argument.
        check: its check.
        types: what its decorator lets through, besides None; nothing: anything.
        target: the one device_target on which it is taken; on others the value is ignored, with a warning at each call.
        once: a second call is an error.
        equal: but not one with the value that is in force.
        late: the check comes after the rule of the second call.
        default: a call with this value does not count as one.
    """

    argument: str
    check: Check
    types: tuple[type, ...] = ()
    target: str = ""
    once: bool = False
    equal: bool = False
    late: bool = False
    default: Any = UNSET


def _inner(group: str, key: str) -> Check:
    return keys.GROUPS[group][key].check


def _bool(value: Any, look: Look) -> Any:
    """What is left of a bool's check after the decorator: None, at which the C++ side raises."""
    return value if isinstance(value, bool) else look.wrong(TypeError, f"{value!r} is not a bool", "True, False")


THREADS = Number(1, plain=True, most=keys.THREADS)
ASCEND: dict[str, Any] = {"target": "Ascend", "once": True, "equal": True}

FUNCTIONS: Mapping[str, Function] = {
    "runtime.dispatch_threads_num": Function(argument="threads_num", check=THREADS, types=(int,), once=True, late=True),
    "set_recursion_limit": Function(argument="recursion_limit", check=Number(1, plain=True, most=keys.DEPTH)),
    "set_deterministic": Function(argument="deterministic", check=_bool, types=(bool,), once=True, late=True),
    "device_context.cpu.op_tuning.threads_num": Function(argument="num", check=THREADS, types=(int,), once=True, late=True),
    **{
        f"device_context.gpu.op_precision.{name}": Function(argument="value", check=_bool, types=(bool,), target="GPU")
        for name in ("matmul_allow_tf32", "conv_allow_tf32")
    },
    **{
        f"device_context.gpu.op_tuning.{name}": Function(argument="mode", check=_inner("gpu_config", name), target="GPU")
        for name in ("conv_fprop_algo", "conv_dgrad_algo", "conv_wgrad_algo")
    },
    "device_context.ascend.op_precision.precision_mode": Function(
        argument="mode", check=_inner("ascend_config", "precision_mode"), late=True, **ASCEND
    ),
    "device_context.ascend.op_precision.op_precision_mode": Function(
        argument="path", check=ini_file, types=(str,), late=True, **ASCEND
    ),
    "device_context.ascend.op_precision.matmul_allow_hf32": Function(argument="value", check=keys.TRUTH, **ASCEND),
    "device_context.ascend.op_precision.conv_allow_hf32": Function(argument="value", check=keys.TRUTH, **ASCEND),
    "device_context.ascend.op_tuning.op_compile": Function(
        argument="value", check=OneOf(keys.JIT_COMPILE, kind=TypeError), **ASCEND
    ),
    "device_context.ascend.op_tuning.aoe_tune_mode": Function(
        argument="tune_mode", check=keys.KEYS["aoe_tune_mode"].check, late=True, **ASCEND
    ),
    "device_context.ascend.op_tuning.aoe_job_type": Function(
        argument="config", check=_inner("aoe_config", "job_type"), late=True, default="2", **ASCEND
    ),
    "device_context.ascend.op_debug.execute_timeout": Function(
        argument="op_timeout", check=Number(0), types=(int,), late=True, default=900, **ASCEND
    ),
}
"""msctx's name of the function (``Option.also``) → its rules."""


def setter(name: str, option: Option) -> Callable[..., None]:
    """The function of a row, as one that can be called."""
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
    what = f"ms.{name}"
    found: list[Found] = []
    notes: list[Note] = []
    look = Look(row.argument, state.origin(what), found, notes)
    look.type(value, row.types)
    raise_first(found)
    if row.target and not has_target(what, row.target):
        return
    again = row.once and _is_configured(name, row)
    converted = row.check(value, look)
    if row.equal and converted is not DROP and _is_in_force(name, option, converted):
        return
    if again and row.late:
        refuse_again(what)
    raise_first(found)
    if again:
        refuse_again(what)
    state.tell_all([note._replace(name=f"{name}({note.name})") for note in notes])
    if converted is not DROP:
        state.store({name: converted}, what)


def has_target(what: str, target: str) -> bool:
    """Whether the target is the one a function is for; if not, a note reports that its value is ignored."""
    if (here := state.target()) == target:
        return True
    text = f"{what}: device_target is {here}, and MindSpore takes this with {target} alone: the value is ignored"
    if state.is_strict():
        raise StrictError.of([text])
    state.report(text)
    return False


def refuse_again(what: str) -> None:
    raise OptionRuntimeError([Diagnostic(what, "it can be set only once", state.origin(what))])


def _is_configured(name: str, row: Function) -> bool:
    """Whether it was called before."""
    setting = state.set_by(name)
    return setting is not None and setting.value != row.default


def _is_in_force(name: str, option: Option, value: Any) -> bool:
    found = state.in_force(option.name, device_of(name) or "cpu")
    return found is not None and found.value == value


def named(name: str) -> Option:
    option = find(name)
    assert option is not None, name
    return option

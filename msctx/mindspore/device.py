"""MindSpore's functions about the device, determinism and seeds that stand at its top level."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

from msctx.dynamo import outside_dynamo
from msctx.errors import Diagnostic
from msctx.mindspore import state
from msctx.mindspore.checks import Look, Nothing, Number, OneOf
from msctx.mindspore.errors import OptionRuntimeError
from msctx.mindspore.functions import described_setter
from msctx.options.kinds import show

TARGETS = OneOf(("CPU", "GPU", "Ascend"))
DEVICE_ID = Number(0, 4095)


class DeviceInfo(NamedTuple):
    """A device: ``device_target`` and ``device_id``."""

    device_target: str
    device_id: int

    def __repr__(self) -> str:
        return repr(tuple(self))


@outside_dynamo
def set_device(device_target: str, device_id: int | None = None) -> None:
    """The device that work is meant for. It can be set once; with the same values again, as often as one likes.

    A target that is not on this machine is planned: entering a context raises.

    Raises:
        TypeError: wrong types.
        ValueError: an unknown target (exact upper and lower case), or a negative number.
        RuntimeError: another device was set before.
    """
    call = state.Call("ms.set_device")
    call.check_types(device_target=(device_target, str), device_id=(device_id, int))
    with suppress(Nothing):
        TARGETS(device_target, call.look("device_target"))
    with suppress(Nothing):
        _check_id(device_id, call.look("device_id"))
    call.raise_first()
    given = DeviceInfo(device_target, int(device_id or 0))
    if (before := _device_set()) is not None:
        if before != given:
            text = f"{given} cannot replace {before}: it can be set only once"
            raise OptionRuntimeError([Diagnostic(call.what, text, call.where)])
        return
    options: dict[str, Any] = {"set_device.device_target": device_target}
    if device_id is not None:
        options["set_device.device_id"] = given.device_id
    state.store(options, call.what)


def _check_id(value: int | None, look: Look) -> None:
    """MindSpore checks the sign alone in Python, and its C++ side takes 32 bits."""
    if value is not None and value >= 2**32:
        look.wrong(RuntimeError, f"{show(value)} does not fit in 32 bits", DEVICE_ID.allowed)
    if value is not None:
        DEVICE_ID(value, look)


def _device_set() -> DeviceInfo | None:
    target = state.set_by("set_device.device_target")
    number = state.set_by("set_device.device_id")
    return None if target is None else DeviceInfo(target.value, 0 if number is None else number.value)


def get_current_device() -> DeviceInfo:
    """The device in force: ``(device_target, device_id)``."""
    from msctx.mindspore.context import get_value

    return DeviceInfo(state.target(), get_value("device_id"))


set_deterministic = described_setter("set_deterministic")
set_recursion_limit = described_setter("set_recursion_limit")


@outside_dynamo
def set_seed(seed: int) -> None:
    """Seed Python, NumPy and torch on every device.

    Raises:
        TypeError: not a number, or a bool.
        ValueError: negative, or more than 32 bits.
    """
    call = state.Call("ms.set_seed")
    with suppress(Nothing):
        Number(0, 2**32 - 1, plain=True)(seed, call.look("seed"))
    call.raise_first()
    state.store({"seed": seed}, call.what)


def get_seed() -> int | None:
    """The seed in force; None when nobody set one."""
    setting = state.in_force("seed", "cpu")
    return None if setting is None else setting.value

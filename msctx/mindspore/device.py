"""MindSpore's functions about the device, determinism and seeds that stand at its top level."""

from __future__ import annotations

from typing import Any, NamedTuple

from msctx.dynamo import outside_dynamo
from msctx.errors import Diagnostic
from msctx.mindspore import state
from msctx.mindspore.context import get_value
from msctx.mindspore.errors import OptionRuntimeError, OptionTypeError
from msctx.vocabulary import setter


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
    where = state.origin("ms.set_device")
    wrong = state.wrong_type("device_target", device_target, (str,), where)
    if wrong := wrong + state.wrong_type("device_id", device_id, (int, type(None)), where):
        raise OptionTypeError(wrong)
    given = DeviceInfo(device_target, int(device_id or 0))
    before, number = state.set_by("set_device.device_target"), state.set_by("set_device.device_id")
    if before is not None and given != (before.value, number.value if number else 0):
        raise OptionRuntimeError([Diagnostic("ms.set_device", f"{tuple(given)}: it can be set only once", where)])
    options: dict[str, Any] = {"set_device.device_target": device_target}
    if device_id is not None:
        options["set_device.device_id"] = given.device_id
    state.store(options, "ms.set_device")


def get_current_device() -> DeviceInfo:
    """The device in force: ``(device_target, device_id)``."""
    return DeviceInfo(state.target(), get_value("device_id"))


set_deterministic = outside_dynamo(setter("set_deterministic", __name__, state.set_one))
set_recursion_limit = outside_dynamo(setter("set_recursion_limit", __name__, state.set_one))


@outside_dynamo
def set_seed(seed: int) -> None:
    """Seed Python, NumPy and torch on every device.

    Raises:
        TypeError: not a number.
        ValueError: negative, or more than 32 bits.
    """
    if wrong := state.wrong_type("seed", seed, (int,), state.origin("ms.set_seed")):
        raise OptionTypeError(wrong)
    state.store({"seed": seed}, "ms.set_seed")


def get_seed() -> int | None:
    """The seed in force; None when nobody set one."""
    setting = state.in_force("seed", "cpu")
    return None if setting is None else setting.value

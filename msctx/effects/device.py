"""device_target, device_id: the current device, and the device new tensors are created on."""

from __future__ import annotations

from msctx.effects.base import Outcome, Want, approximated, effect, honoured, inert

WORDS = {"cpu": "CPU", "cuda": "GPU", "ascend": "Ascend"}
CURRENT = {"cuda": "torch.cuda.current_device", "ascend": "torch.npu.current_device"}
"""Device → the switch of the thread's current one."""


def is_target(want: Want) -> bool | None:
    """Whether this device is the target; ``None`` when nobody set one."""
    target = want.other("device_target")
    return None if target is None else WORDS[want.device] == target


@effect("device_target")
def device_target(want: Want) -> Outcome | None:
    if not is_target(want):
        return None
    return honoured(reason=f"ctx.device is {'npu' if want.device == 'ascend' else want.device}")


@effect("device_id")
def device_id(want: Want) -> Outcome | None:
    """The CPU has one device; on the others the id becomes the current device of the thread."""
    if is_target(want) is False:
        return None
    if want.device == "cpu":
        if is_target(want) is None and set(want.facts.devices) != {"cpu"}:
            return None
        return honoured() if want.value == 0 else inert("there is one CPU device, the id is ignored as MindSpore does")
    return honoured({CURRENT[want.device]: want.value})


@effect("default_device")
def default_device(want: Want) -> Outcome | None:
    target = "CPU" if want.other("use_off_line") is False else want.other("device_target")
    if not want.value:
        return honoured()
    if target is None:
        return inert("no device_target is set")
    if WORDS[want.device] != target:
        return None
    kind = {"cpu": "cpu", "cuda": "cuda", "ascend": "npu"}[want.device]
    number = want.other("session_device_id", want.other("device_id"))
    name = kind if number is None or kind == "cpu" else f"{kind}:{number}"
    return honoured({"torch.default_device": name})


@effect("use_off_line")
def use_off_line(want: Want) -> Outcome | None:
    """CANN's switch between the device and the host."""
    if want.value:
        return honoured(reason="the device of device_target is used")
    return approximated({}, "ctx.device is cpu; a model that names another device itself is not moved")

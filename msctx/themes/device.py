"""The current device, and the device new tensors are created on."""

from __future__ import annotations

from msctx.options import Setting
from msctx.themes.base import On, Outcome, Outcomes, approximated, honoured, inert

WORDS = {"cpu": "CPU", "cuda": "GPU", "ascend": "Ascend"}
CURRENT = {"cuda": "torch.cuda.current_device", "ascend": "torch.npu.current_device"}
"""Device → the switch of the thread's current one."""


def translate(on: On) -> Outcomes:
    return on.each(
        {
            "device_target": _device_target,
            "device_id": _device_id,
            "session_device_id": _device_id,
            "default_device": _default_device,
            "use_off_line": _use_off_line,
        }
    )


def _is_target(on: On) -> bool | None:
    """Whether this device is the target; ``None`` when nobody set one."""
    target = on.get("device_target")
    return None if target is None else WORDS[on.device] == target


def _device_target(on: On, setting: Setting) -> Outcome | None:
    if not _is_target(on):
        return None
    return honoured(reason=f"ctx.device is {'npu' if on.device == 'ascend' else on.device}")


def _device_id(on: On, setting: Setting) -> Outcome | None:
    """The CPU has one device; on the others the id becomes the current device of the thread."""
    if _is_target(on) is False:
        return None
    if on.device != "cpu":
        return honoured({CURRENT[on.device]: setting.value})
    if _is_target(on) is None and set(on.facts.devices) != {"cpu"}:
        return None
    if setting.value == 0:
        return honoured()
    if setting.option.name == "session_device_id":
        return approximated({}, "there is one CPU device: any id means it")
    return inert("there is one CPU device, the id is ignored as MindSpore does")


def _default_device(on: On, setting: Setting) -> Outcome | None:
    target = "CPU" if on.get("use_off_line") is False else on.get("device_target")
    if not setting.value:
        return honoured()
    if target is None:
        return inert("no device_target is set")
    if WORDS[on.device] != target:
        return None
    kind = {"cpu": "cpu", "cuda": "cuda", "ascend": "npu"}[on.device]
    number = on.get("session_device_id", on.get("device_id"))
    name = kind if number is None or kind == "cpu" else f"{kind}:{number}"
    return honoured({"torch.default_device": name})


def _use_off_line(on: On, setting: Setting) -> Outcome | None:
    """CANN's switch between the device and the host."""
    if setting.value:
        return honoured(reason="the device of device_target is used")
    return approximated({}, "ctx.device is cpu; a model that names another device itself is not moved")

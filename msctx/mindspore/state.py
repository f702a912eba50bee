"""Where the drop-in face meets msctx: values in force, values set, and MindSpore's rules of devices and of what is set once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msctx import devices
from msctx.context import current, set_options
from msctx.context.base import BASE
from msctx.errors import DeviceError, Diagnostic, OptionError, StrictError, user_frame
from msctx.mindspore.errors import OptionRuntimeError, OptionTypeError
from msctx.mindspore.keys import DEVICE, FLAT, GROUPS, KEYS
from msctx.notices import warn
from msctx.options import UNSET, Setting, find, make_layer
from msctx.options.kinds import show


def in_force(option: str, device: str) -> Setting | None:
    """The setting of an option that acts on a device, in this thread; also one that yields to another option."""
    BASE.start()
    for layer in reversed(current().acting().layers):
        mine = [s for s in layer.settings.values() if s.option.name == option and s.device in (None, device)]
        if mine:
            return max(mine, key=lambda setting: setting.rank)
    return None


def target() -> str:
    """``device_target``: the one in force, else the accelerator of this machine, else the CPU."""
    BASE.start()
    found = current().settings.get("device_target")
    return default_target() if found is None else found.value


def default_target() -> str:
    return next((word for word in DEVICE if word != "CPU" and is_here(word)), "CPU")


def is_here(word: str) -> bool:
    return DEVICE[word] in devices.here()


def set_by(spelling: str) -> Setting | None:
    """What this program set for the process under just this spelling: what can be set only once stands here."""
    BASE.start()
    layer = BASE.levels.get("set_context")
    return None if layer is None else layer.settings.get(spelling)


def origin(what: str) -> str:
    return f"{what} at {user_frame()[0]}"


def wrong_type(name: str, value: Any, types: tuple[type, ...], where: str) -> list[Diagnostic]:
    """The problem of a value whose type MindSpore does not take."""
    if not types or isinstance(value, types):
        return []
    text = f"{show(value)} is of type {type(value).__name__}"
    return [Diagnostic(name, text, where, " or ".join(kind.__name__ for kind in types))]


def problems_of(options: Mapping[str, Any], where: str) -> Sequence[Diagnostic]:
    """What msctx's options say to values."""
    try:
        make_layer(options, where)
    except OptionError as error:
        return error.problems
    return ()


def store(options: Mapping[str, Any], what: str) -> None:
    """Set options for the process, all at once, and take back those that are ``UNSET``.

    A target that is not on this machine is planned only.
    """
    BASE.start()
    if given := {name: value for name, value in options.items() if value is not UNSET}:
        settings = make_layer(given, origin(what)).settings.values()
        word = next((setting.value for setting in settings if setting.option.name == "device_target"), None) or target()
        if not is_here(word):
            text = "there is no such device here; what is set is planned, and waits for a target that is here"
            warn(f"device_target={word!r}: {text}")
        set_options(given, what, absent=True)
    BASE.take_back("set_context", {*options} - {*given})


def set_one(name: str, value: Any) -> None:
    """Set an option by one of its newer names, under MindSpore's rules of devices and of what can be set only once.

    Raises:
        TypeError, ValueError: a wrong type, a wrong value.
        RuntimeError: another value was set before.
    """
    option, what = find(name), f"ms.{name}"
    assert option is not None
    wanted = {"gpu": "GPU", "ascend": "Ascend"}.get(name.split(".")[1] if "." in name else "")
    if wanted and (here := target()) != wanted:
        tell_all([f"{what}: device_target is {here}, and MindSpore takes this with {wanted} alone: the value is ignored"])
        return
    group, inner = FLAT.get(option.name.replace("aoe_config.", "aoe_"), ("", ""))
    types = GROUPS[group][inner].types if group else KEYS[option.name].types
    types = (bool,) if name == "set_deterministic" else types
    where = origin(what)
    if wrong := wrong_type(name, value, types, where):
        raise OptionTypeError(wrong)
    before = set_by(name)
    (setting,) = make_layer({name: value}, where).settings.values()
    if wanted != "GPU" and name != "set_recursion_limit" and before is not None and before.value != setting.value:
        raise OptionRuntimeError([Diagnostic(what, "it can be set only once", where)])
    store({name: value}, what)


def tell_all(notes: Sequence[str]) -> None:
    """Warn of each; under ``strict=True`` that is an error."""
    if notes and is_strict():
        raise StrictError.of(notes)
    for note in notes:
        warn(note)


def is_strict() -> bool:
    found = in_force("strict", "cpu")
    return found is not None and found.value is True


def torch_module(word: str) -> Any:
    """``torch.cuda`` or ``torch.npu``; None for the CPU.

    Raises:
        DeviceError: there is no such device here.
    """
    if word == "CPU":
        return None
    import torch

    if not is_here(word):
        raise DeviceError.missing(word, [known for known in DEVICE if is_here(known)])
    return getattr(torch, {"GPU": "cuda", "Ascend": "npu"}[word])

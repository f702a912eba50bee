"""Where the drop-in face meets msctx: values in force, values set, and what MindSpore remembers about them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from msctx.context import current, set_options
from msctx.context.base import BASE
from msctx.errors import DeviceError, MsctxWarning, StrictError
from msctx.mindspore.checks import Note
from msctx.mindspore.keys import DEVICE
from msctx.notices import tell, user_frame
from msctx.options import UNSET, Setting


def start() -> None:
    """What every use begins with: MSCTX_* is read at the first, and what is remembered is forgotten after a reset."""
    MARKS.renew()


def in_force(option: str, device: str) -> Setting | None:
    """The setting of an option that counts on a device, in this thread; also one that yields to another option."""
    start()
    for layer in reversed(current().settings.layers):
        mine = [s for s in layer.settings.values() if s.option.name == option and s.device in (None, device)]
        if mine:
            return max(mine, key=lambda setting: setting.rank)
    return None


def target() -> str:
    """``device_target``: the one in force, else the accelerator of this machine, else the CPU."""
    start()
    found = current().settings.get("device_target")
    return default_target() if found is None else found.value


def default_target() -> str:
    return next((word for word in DEVICE if word != "CPU" and is_here(word)), "CPU")


def missing(word: str) -> DeviceError:
    """The error for a device that is not on this machine."""
    from msctx import devices

    return DeviceError.missing(word, [word for word, device in DEVICE.items() if device in devices.here()])


def is_here(word: str) -> bool:
    from msctx import devices

    return DEVICE[word] in devices.here()


def is_strict() -> bool:
    """Whether what is not carried out is an error."""
    found = in_force("strict", "cpu")
    return found is not None and found.value is True


def set_by(spelling: str) -> Setting | None:
    """What this program set for the process under just this spelling: what can be set only once stands here."""
    start()
    layer = BASE.levels.get("set_context")
    return None if layer is None else layer.settings.get(spelling)


def store(options: Mapping[str, Any], what: str) -> None:
    """Set options for the process, all at once, and take back those that are ``UNSET``.

    A target that is not on this machine is planned only.
    """
    start()
    if given := {name: value for name, value in options.items() if value is not UNSET}:
        _set(given, what)
    BASE.take_back("set_context", {*options} - {*given})


def _set(options: Mapping[str, Any], what: str) -> None:
    word = next((options[name] for name in ("set_device.device_target", "device_target") if name in options), None) or target()
    if not is_here(word):
        text = (
            f"device_target={word!r}: there is no such device here; what is set is planned, and waits for a target that is here"
        )
        tell("ms.device_target", word, text)
    set_options(options, what, absent=True)


def tell_all(notes: Sequence[Note]) -> None:
    """Warn of what is left out, once each; under ``strict=True`` that is an error."""
    left_out = [f"{note.name}: {note.text}" for note in notes if note.left_out]
    if left_out and is_strict():
        raise StrictError.of(left_out)
    for note in notes:
        tell(f"ms.{note.name}", note.text, f"{note.name}: {note.text}")


def origin(what: str) -> str:
    return f"{what} at {user_frame()[0]}"


def report(text: str) -> None:
    """Warn at each call, not only at the first."""
    warnings.warn(text, MsctxWarning, stacklevel=user_frame()[1])


class Marks:
    """What MindSpore remembers for the life of the process, until ``msctx.reset_context()``: what was read, what is done."""

    def __init__(self) -> None:
        self._marks: set[str] = set()
        self._era = (0, 0)

    def renew(self) -> None:
        """Forget everything after a reset, and in a forked child."""
        BASE.start()
        if self._era != (era := (BASE.resets, os.getpid())):
            self._marks, self._era = set(), era

    def __contains__(self, name: str) -> bool:
        start()
        return name in self._marks

    def add(self, name: str) -> None:
        start()
        self._marks.add(name)


MARKS = Marks()


def torch_module(word: str) -> Any:
    """``torch.cuda`` or ``torch.npu``."""
    import torch

    return getattr(torch, {"GPU": "cuda", "Ascend": "npu"}[word])

"""Where the drop-in face meets msctx: values in force, values set, and what MindSpore remembers about them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from msctx.context import current, set_options
from msctx.context.base import BASE
from msctx.errors import DeviceError, Diagnostic, MsctxWarning, StrictError
from msctx.mindspore.checks import Look, Note, has_type
from msctx.mindspore.errors import OptionRuntimeError, Problems, raise_first
from msctx.mindspore.keys import DEVICE
from msctx.notices import user_frame, warn
from msctx.options import UNSET, Setting


def in_force(option: str, device: str) -> Setting | None:
    """The setting of an option that counts on a device, in this thread; also one that yields to another option."""
    BASE.start()
    for layer in reversed(current().settings.layers):
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
    from msctx import devices

    return DEVICE[word] in devices.here()


def is_strict() -> bool:
    """Whether what is not carried out is an error."""
    found = in_force("strict", "cpu")
    return found is not None and found.value is True


def set_by(spelling: str) -> Setting | None:
    """What this program set for the process under just this spelling: what can be set only once stands here."""
    BASE.start()
    layer = BASE.levels.get("set_context")
    return None if layer is None else layer.settings.get(spelling)


class Call:
    """One call of a function of MindSpore: collects what is wrong with its values, and notes on them."""

    def __init__(self, what: str) -> None:
        self.what, self.where = what, origin(what)
        self.problems: Problems = []
        self.notes: list[Note] = []

    def look(self, name: str) -> Look:
        return Look(name, self.where, self.problems, self.notes)

    def check_types(self, **given: tuple[Any, type]) -> None:
        """MindSpore's decorators check the types of all arguments before anything else."""
        for name, (value, wanted) in given.items():
            has_type(value, (wanted,), self.look(name))
        self.raise_first()

    def raise_first(self) -> None:
        raise_first(self.problems)

    def refuse_again(self) -> NoReturn:
        raise OptionRuntimeError([Diagnostic(self.what, "it can be set only once", self.where)])


def store(options: Mapping[str, Any], what: str) -> None:
    """Set options for the process, all at once, and take back those that are ``UNSET``.

    A target that is not on this machine is planned only.
    """
    BASE.start()
    if given := {name: value for name, value in options.items() if value is not UNSET}:
        _set(given, what)
    BASE.take_back("set_context", {*options} - {*given})


def _set(options: Mapping[str, Any], what: str) -> None:
    word = next((options[name] for name in ("set_device.device_target", "device_target") if name in options), None) or target()
    if not is_here(word):
        text = (
            f"device_target={word!r}: there is no such device here; what is set is planned, and waits for a target that is here"
        )
        warn("ms.device_target", word, text)
    set_options(options, what, absent=True)


def tell_all(notes: Sequence[Note]) -> None:
    """Warn of what is left out, once each; under ``strict=True`` that is an error."""
    left_out = [f"{note.name}: {note.text}" for note in notes if note.left_out]
    if left_out and is_strict():
        raise StrictError.of(left_out)
    for note in notes:
        warn(f"ms.{note.name}", note.text, f"{note.name}: {note.text}")


def origin(what: str) -> str:
    return f"{what} at {user_frame()[0]}"


def report(text: str) -> None:
    """Warn at each call, not only at the first; under ``strict=True`` raise."""
    if is_strict():
        raise StrictError.of([text])
    warnings.warn(text, MsctxWarning, stacklevel=user_frame()[1])


_marks: dict[tuple[int, int], set[str]] = {}


def marks() -> set[str]:
    """What MindSpore remembers for the life of the process, until ``msctx.reset_context()``: what was read, what is done."""
    BASE.start()
    era = BASE.resets, os.getpid()  # a forked child forgets too
    if era not in _marks:
        _marks.clear()
    return _marks.setdefault(era, set())


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

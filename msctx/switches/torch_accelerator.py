"""The settings that the caching allocators of all accelerators share; they exist in torch's CPU builds too.

torch has one text of them. Each new text resets some keys that it lacks (max_split_size_mb …) and leaves others as they are
(those of :data:`DEFAULTS`), and the getter returns the last text as it came. So what is requested is laid over the user's own
text, which is sent again at the end, with what it lacks once as torch's default.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import _C

from msctx.errors import SwitchError
from msctx.switches.base import of
from msctx.switches.torch_npu import ALLOCATOR, REFUSALS, allocator_problem
from msctx.switches.torch_npu import is_here as npu_is_here

DEFAULTS = {"large_segment_size_mb": "20", "expandable_segments": "False"}
"""The keys that the switch sets → what torch starts with."""
NOT_EXPANDABLE = ("max_split_size_mb", "garbage_collection_threshold")
"""What torch_npu does not take beside expandable segments; it complains late, and crashes at the next allocation."""
_PAIR = re.compile(r"([^,:\[\]]+):(\[[^\]]*\]|[^,]*)")


def parse(text: str) -> dict[str, str]:
    """Key → its value as it is written, a list with its brackets."""
    return dict(_PAIR.findall("".join(text.split())))


def join(settings: Mapping[str, str]) -> str:
    return ",".join(f"{key}:{value}" for key, value in settings.items())


def obstacle(settings: Mapping[str, str], *, npu: bool) -> str:
    """Why settings cannot be sent though torch would take them at once."""
    if settings.get("backend", "native") != "native":
        return f"the allocator chosen by backend:{settings['backend']} has no such settings"
    if npu and settings.get("expandable_segments") == "True" and (beside := [k for k in NOT_EXPANDABLE if k in settings]):
        return f"torch_npu has no expandable segments beside {' and '.join(beside)}, which is set already"
    return ""


def is_here() -> bool:
    return hasattr(_C, "_accelerator_setAllocatorSettings") and hasattr(_C, "_accelerator_getAllocatorSettings")


def _now() -> str:
    """The text in effect. torch_npu reads its own variable only when the first text reaches it."""
    if not is_here():
        return ""
    variable = os.environ.get(ALLOCATOR, "") if hasattr(torch, "npu") else ""
    return _C._accelerator_getAllocatorSettings() or variable


def _ours(text: str) -> dict[str, str]:
    return {key: value for key, value in parse(text).items() if key in DEFAULTS}


def _send(text: str, *ignored: type[Exception]) -> None:
    lacking = DEFAULTS.keys() & _ours(_now()).keys() - _ours(text).keys()
    back = join(parse(text) | {key: DEFAULTS[key] for key in sorted(lacking)})
    for step in (back, text) if lacking else (text,):
        with suppress(*ignored):
            _C._accelerator_setAllocatorSettings(step)
            if _C._accelerator_getAllocatorSettings() != step:  # torch_npu has just read its variable, over what it was sent
                _C._accelerator_setAllocatorSettings(step)


def _complaint(text: str, *, keep: bool) -> str:
    """Send a text, and take it back where torch does not like it, or where it need not be kept; returns torch's complaint."""
    found, complaint = _now(), ""
    try:
        _send(text)
    except REFUSALS as error:
        complaint = f"torch does not take {text}: {str(error).splitlines()[0]}"
    if complaint or not keep:
        _send(found, *REFUSALS)  # torch may not have liked the user's text either
    return complaint


class _Settings:
    """A value holds some keys of DEFAULTS; ``None``: as the user has it."""

    laid: tuple[str, str] = ("", "")
    """What was sent last, and the user's text under it."""

    def _over(self, value: Mapping[str, Any] | None) -> tuple[str, str]:
        """The user's text with *value* laid over it, and that text."""
        users = self.laid[1] if _now() == self.laid[0] else _now()
        return join(parse(users) | {key: str(new) for key, new in value.items()}) if value else users, users

    def read(self) -> dict[str, Any] | None:
        words = {"True": True, "False": False}
        return {key: words.get(text, int(text) if text.isdecimal() else text) for key, text in _ours(_now()).items()} or None

    def write(self, value: Mapping[str, Any] | None) -> None:
        laid = self._over(value)
        if complaint := _complaint(laid[0], keep=True):
            raise SwitchError(complaint)
        self.laid = laid

    def save(self) -> tuple[str, tuple[str, str]]:
        return _now(), self.laid

    def load(self, state: tuple[str, tuple[str, str]]) -> None:
        text, self.laid = state
        if text != _now():
            _send(text)

    def holds(self, value: Mapping[str, Any] | None) -> bool:
        return _ours(_now()) == _ours(self._over(value)[0])

    def blocked(self, value: Mapping[str, Any] | None) -> str:
        if not is_here():
            return f"torch {torch.__version__} has no settings of its allocators that can be set late"
        if npu_is_here() and (problem := allocator_problem()):
            raise SwitchError(problem)
        text, _ = self._over(value)
        return obstacle(parse(text), npu=npu_is_here()) or _complaint(text, keep=False)


SWITCHES = (of("torch.accelerator.allocator_settings", _Settings()),)

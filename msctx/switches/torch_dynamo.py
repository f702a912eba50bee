"""By what Dynamo's guards distinguish compiled code beside torch's own settings.

Code that is compiled under settings that change nothing but how it is compiled would go on running after them, and code from before
would go on inside. Guards look at the dtype of an autocast of every device, also of one that nobody has: it stands for the settings.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

from msctx.imports import when_imported
from msctx.switches.base import Switch

_DEVICE = "mtia"
_DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)
_numbers: dict[str, int] = {}
"""Content → which dtype stands for it. After as many contents as there are dtypes, two share one."""
compiled: set[str] = set()
"""The contents under which this process has compiled anything."""
_waits: list[Callable[[], None]] = []
_CALLBACK = "torch._dynamo.callback"


class _Here(threading.local):
    content: str | None = None


_here = _Here()


def _read() -> str | None:
    return _here.content


def _write(content: str | None) -> None:
    _here.content = content
    if content is not None:
        _listen()
    if torch.mtia.is_available():  # its autocast means something
        return
    torch.set_autocast_enabled(_DEVICE, content is not None)
    if content is not None:
        torch.set_autocast_dtype(_DEVICE, _DTYPES[_numbers.setdefault(content, len(_numbers)) % len(_DTYPES)])


def _note(*of_torch: object) -> None:
    """Dynamo calls it where it begins to compile, in that thread."""
    if _here.content is not None:
        compiled.add(_here.content)


def _listen() -> None:
    if _CALLBACK in sys.modules:
        _register()
    elif not _waits:
        _waits.append(when_imported(_CALLBACK, _register))


def _register() -> None:
    if not is_noting():
        sys.modules[_CALLBACK].callback_handler.register_start_callback(_note)


def is_noting() -> bool:
    """Whether what is compiled is noted; torch._dynamo.reset() ends that until the next content."""
    found = sys.modules.get(_CALLBACK)
    return found is None or _note in found.callback_handler.start_callbacks


def _save() -> tuple[str | None, Any, bool]:
    return _here.content, torch.get_autocast_dtype(_DEVICE), torch.is_autocast_enabled(_DEVICE)


def _load(state: tuple[str | None, Any, bool]) -> None:
    _here.content, dtype, enabled = state
    torch.set_autocast_dtype(_DEVICE, dtype)
    torch.set_autocast_enabled(_DEVICE, enabled)


SWITCHES = (Switch(name="torch.dynamo.apart", read=_read, write=_write, scope="thread", save=_save, load=_load),)

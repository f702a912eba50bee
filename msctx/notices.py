"""Warnings that are issued once, at the user's line."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable

from msctx.errors import MsctxWarning

_told: set[int] = set()
FORGOTTEN: list[Callable[[], object]] = []
"""Called when every warning is to be issued again, by those who remember for themselves which were."""


def tell(option: str, reason: str, text: str) -> None:
    """Warn once per (option, reason)."""
    key = hash((option, reason))  # the reasons themselves may be long, and many
    if key not in _told:
        warnings.warn(text, MsctxWarning, stacklevel=user_frame()[1])
        _told.add(key)


def user_frame() -> tuple[str, int]:
    """``file.py:line`` of the nearest caller that is not msctx or torch, and its stack level seen from our caller."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in (
        "msctx",
        "torch",
        "contextlib",
    ):
        frame, level = frame.f_back, level + 1
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}", level


def forget() -> None:
    """Let every warning be issued again."""
    _told.clear()
    for again in FORGOTTEN:
        again()

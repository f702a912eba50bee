"""Warnings, each issued once under one state of Python's own filters, at the user's line."""

from __future__ import annotations

import os
import re
import sys
import threading
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from msctx.errors import MsctxWarning

FORGOTTEN: list[Callable[[], object]] = []
"""Called when every warning is to be issued again, by those who remember for themselves which were."""
_KEPT = 8
_GENERATED = re.compile(r"^<eval_with_key>|:codegen\(")
"""The files of code that torch writes, which has no name."""
_warned: list[tuple[Any, list[Any], set[int]]] = []
"""Python's lists of filters, the latest last, what is in each, and what was issued under it: catch_warnings() begins a new one."""
_more: Counter[str] = Counter()
"""Option → how many warnings of it were not issued, since there was one already."""
_of_context: defaultdict[str, set[int]] = defaultdict(set)
"""Option → its warnings that are issued once in each context."""


_here = threading.local()


@contextmanager
def put_off(found: list[tuple[str, str, str]]) -> Iterator[None]:
    """In this block this thread's warnings go to *found*: one may be an error, which must not break off what puts things back."""
    before, _here.waiting = getattr(_here, "waiting", None), found
    try:
        yield
    finally:
        _here.waiting = before


def warn_put_off(found: list[tuple[str, str, str]]) -> None:
    """Once all is put back. Where warnings are errors, one that would replace an exception that is under way is printed."""
    is_under_way = sys.exc_info()[1] is not None
    for one in found:
        try:
            warn(*one)
        except MsctxWarning as warning:
            if not is_under_way:
                raise
            print(f"warning: {warning}", file=sys.stderr)


def warn(option: str, reason: str, text: str) -> bool:
    """Warn once per (option, reason); returns whether it did."""
    if (waiting := getattr(_here, "waiting", None)) is not None:
        waiting.append((option, reason, text))
        return False
    warned = _under_these_filters()
    key = hash((option, reason))  # the reasons themselves may be long, and many
    if key in warned:
        return False
    warnings.warn(text, MsctxWarning, stacklevel=user_frame()[1])
    warned.add(key)
    return True


def warn_or_print(option: str, reason: str, text: str) -> None:
    """Where a warning that is an error must not break off what goes on."""
    try:
        warn(option, reason, text)
    except MsctxWarning as warning:
        print(f"warning: {warning}", file=sys.stderr)


def warn_first(option: str, text: str) -> None:
    """Warn once per option and context, and count what follows; see :func:`counted`."""
    warned, first = _under_these_filters(), hash((option, ""))
    if first in warned:
        _more[option] += 1
    elif warn(option, text, text):
        warned.add(first)
        _of_context[option].add(first)


def note_of_context(option: str, about: str, reason: str) -> None:
    """The warning ``warn(about, reason, ...)`` is issued once in each context that sets this option."""
    _of_context[option].add(hash((about, reason)))


def begin_context(options: Collection[str]) -> None:
    """A new context sets these options: what is issued once in each context may be issued again."""
    names = [name for name in [*_of_context] if name.partition("=")[0] in options]
    for again in [_of_context.pop(name, set[int]()) for name in names]:  # another thread may have taken one since
        for _, _, warned in [*_warned]:
            warned -= again


def counted(options: Collection[str]) -> list[tuple[str, int]]:
    """Of these options: those of which there was more to warn of than the first time since this was last asked, and how much more."""
    names = [name for name in [*_more] if name.partition("=")[0] in options]
    taken = [(name, _more.pop(name, 0)) for name in names]
    return [(name, more) for name, more in taken if more]


def user_frame() -> tuple[str, int]:
    """``file.py:line`` of the nearest caller that is not msctx or torch, and its stack level seen from our caller."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and (
        frame.f_globals.get("__name__", "").partition(".")[0] in ("msctx", "torch", "contextlib")
        or _GENERATED.search(frame.f_code.co_filename)
    ):
        frame, level = frame.f_back, level + 1
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}", level


def look() -> None:
    """Let those who remember for themselves know where the filters are others."""
    if not _warned or not _is_now(_warned[-1]):
        _under_these_filters()
        for again in FORGOTTEN:
            again()


def _under_these_filters() -> set[int]:
    if not _warned or not _is_now(_warned[-1]):
        found = next((entry for entry in [*_warned] if _is_now(entry)), (warnings.filters, [*warnings.filters], set[int]()))
        _warned[:] = [*(entry for entry in _warned if entry is not found), found][-_KEPT:]
    return _warned[-1][2]


def _is_now(entry: tuple[Any, list[Any], set[int]]) -> bool:
    return entry[0] is warnings.filters and entry[1] == warnings.filters


def forget() -> None:
    """Let every warning be issued again."""
    _warned.clear()
    _more.clear()
    for again in FORGOTTEN:
        again()

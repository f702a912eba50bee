"""Warnings at the user's line. Python's filters decide how often one is shown: by default once for a line and a text."""

from __future__ import annotations

import sys
import threading
import warnings

from msctx.errors import MsctxWarning, user_frame

_here = threading.local()


def warn(text: str) -> None:
    if (waiting := getattr(_here, "waiting", None)) is None:
        warnings.warn(text, MsctxWarning, stacklevel=user_frame()[1])
    else:
        waiting.append(text)


def warn_or_print(text: str) -> None:
    """Where a warning that is an error must not replace what goes on."""
    try:
        warn(text)
    except MsctxWarning as warning:
        print(f"warning: {warning}", file=sys.stderr)


class put_off:  # noqa: N801
    """This thread's warnings are issued after the block, in which settings are restored."""

    def __enter__(self) -> None:
        self._before, _here.waiting = getattr(_here, "waiting", None), []

    def __exit__(self, *_: object) -> None:
        waiting, _here.waiting = _here.waiting, self._before
        for text in waiting:
            (warn_or_print if sys.exc_info()[1] else warn)(text)

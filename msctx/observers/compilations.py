"""Tells the library in which threads torch.compile compiles, while it collects: what runs there is no operator of the program."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from msctx.imports import when_imported
from msctx.native import core

_give_up: list[Callable[[], None]] = []
_found: list[Any] = []
"""torch's own function, while ours is in its place."""


def turn(*, on: bool) -> None:
    if on and not _give_up:
        _give_up.append(when_imported("torch._dynamo.callback", _wrap))
    elif not on and _give_up:
        _give_up.pop()()
        if _found:
            _handler().install_callbacks = _found.pop()


def _handler() -> Any:
    """torch calls its ``install_callbacks`` around each compilation, of a backward pass, too.

    Callbacks of our own would do only until torch._dynamo.reset(), and for the thread that compiles first.
    """
    return sys.modules["torch._dynamo.callback"].CompilationCallbackHandler


def _wrap() -> None:
    handler = _handler()
    install = handler.install_callbacks
    _found.append(install)

    @contextmanager
    @wraps(install)
    def install_callbacks(*args: Any, **kwargs: Any) -> Iterator[None]:
        before = core.load().c.msctx_look_away(1)
        try:
            with install(*args, **kwargs):
                yield
        finally:
            core.load().c.msctx_look_away(before)

    handler.install_callbacks = install_callbacks

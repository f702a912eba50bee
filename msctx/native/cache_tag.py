"""Who shares compiled code by disk: the tag by which torch distinguishes it (``torch.compiler.config.cache_key_tag``), the user's own
with ours, and whether its caches are off (``force_disable_caches``).

Where torch has one tag for the process, threads that request different things share no code by disk while they do.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import torch.compiler.config as config

from msctx.torch_config import NOTHING, Forced, is_threads_own, override, put_override

TAG, DISABLED = "cache_key_tag", "force_disable_caches"


class _Requested:
    """What is requested, by thread, and what was found before the first asked: the override, and the tag."""

    def __init__(self) -> None:
        self.by_thread: dict[int, str] = {}
        self.found: tuple[Any, str] | None = None

    @property
    def contents(self) -> set[str]:
        return {*self.by_thread.values()}

    def put(self, content: str | None) -> None:
        if content is None:
            self.by_thread.pop(threading.get_ident(), None)
        else:
            self.by_thread[threading.get_ident()] = content
        if self.found is None:
            self.found = override(config, TAG), config.cache_key_tag
        tag, users = self.found
        if contents := self.contents:
            config.cache_key_tag = users + "".join(sorted(contents))
        else:
            put_override(config, TAG, tag)
            self.found = None


class _Disabling(Forced):
    """Whether torch's caches are off in every thread: as an option requests it, or since threads request different things."""

    requested: Any = NOTHING

    def holds(self, value: bool) -> bool:
        return self.requested is value

    def save(self) -> tuple[Any, ...]:
        return self.requested, *super().save()[1:]

    def write(self, value: bool) -> None:
        self.load((value, None, None))

    def load(self, state: tuple[Any, ...]) -> None:
        with _lock:
            self.requested, own, thread = state
            self.enforce(own if thread is threading.current_thread() else None)

    def enforce(self, own: Any = None) -> None:
        self.forced = True if len(_process.contents) > 1 else self.requested
        self._enforce(own)


class _Here(threading.local):
    def __init__(self) -> None:
        self.requested = _Requested()
        self.is_put = False


_here, _process = _Here(), _Requested()
DISABLING = _Disabling(config.__name__, DISABLED, bool)
_lock = threading.Lock()


def put(content: str | None) -> None:
    """Distinguish code that this thread compiles by *content*; None: by the user's tag alone, as it was found."""
    _here.is_put = content is not None
    if is_threads_own(config, TAG):
        _here.requested.put(content)
    else:
        with _lock:
            _process.put(content)
            DISABLING.enforce()


def is_put() -> bool:
    """Whether this thread requests something."""
    return _here.is_put


def _after_fork() -> None:
    here = threading.get_ident()
    _process.by_thread = {thread: content for thread, content in _process.by_thread.items() if thread == here}


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

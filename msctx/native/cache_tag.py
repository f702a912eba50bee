"""The tag by which torch distinguishes compiled code on disk (``torch.compiler.config.cache_key_tag``): the user's own, with ours.

Where torch has one tag for the process, threads that ask for different things share no code by disk while they do.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from msctx import locks
from msctx.torch_config import is_threads_own, override, put_override

TAG, DISABLED = "cache_key_tag", "force_disable_caches"


class _Asked:
    """What is asked for, by thread, and what was found before the first asked: the overrides of both entries, and the tag."""

    def __init__(self) -> None:
        self.by_thread: dict[int, str] = {}
        self.found: tuple[Any, Any, str] | None = None

    def put(self, content: str | None) -> None:
        import torch.compiler.config as config

        if content is None:
            self.by_thread.pop(threading.get_ident(), None)
        else:
            self.by_thread[threading.get_ident()] = content
        if self.found is None:
            self.found = override(config, TAG), override(config, DISABLED), config.cache_key_tag
        tag, disabled, users = self.found
        contents = {*self.by_thread.values()}
        if contents:
            config.cache_key_tag = users + "".join(sorted(contents))
        else:
            put_override(config, TAG, tag)
            self.found = None
        if len(contents) > 1:
            config.force_disable_caches = True
        elif not is_threads_own(config, DISABLED):
            put_override(config, DISABLED, disabled)


class _Here(threading.local):
    def __init__(self) -> None:
        self.asked = _Asked()
        self.is_put = False


_here, _process = _Here(), _Asked()
_lock = locks.plain()


def put(content: str | None) -> None:
    """Distinguish code that this thread compiles by *content*; None: by the user's tag alone, as it was found."""
    _here.is_put = content is not None
    if is_threads_own_tag():
        _here.asked.put(content)
    else:
        with _lock:
            _process.put(content)


def is_threads_own_tag() -> bool:
    """Whether each thread has a configuration of its own."""
    import torch.compiler.config as config

    return is_threads_own(config, TAG)


def is_put() -> bool:
    """Whether this thread asks for something."""
    return _here.is_put


def _after_fork() -> None:
    here = threading.get_ident()
    _process.by_thread = {thread: content for thread, content in _process.by_thread.items() if thread == here}


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

"""Dynamo's guards on the hooks of modules: on while a policy names modules, so that compiled code sees these hooks come and go.

By itself Dynamo takes it that a module without hooks stays so. A policy's number, by which compiled code is guarded too, knows only
the policy's content, not which modules there are: so it is the same at each entry.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from msctx.native import cache_tag
from msctx.native.installed import Held
from msctx.torch_config import override, put_override

KEY = "skip_nnmodule_hook_guards"


_missed = False  # policies named modules while Dynamo was not loaded: what it compiled since may have no such guards


def _install() -> Callable[[], None]:
    global _missed
    config: Any = sys.modules.get("torch._dynamo.config")
    if config is None:  # loading it takes seconds
        _missed = True
        return lambda: None
    _forget()
    _missed = False
    found = override(config, KEY)
    setattr(config, KEY, False)
    return lambda: put_override(config, KEY, found)


def _forget() -> None:
    """Compiled code that may not see hooks."""
    if _missed and (dynamo := sys.modules.get("torch._dynamo")) is not None and hasattr(dynamo, "reset"):
        dynamo.reset()


def renew() -> None:
    """Hooks have come. Where Dynamo has been loaded since policies name modules, what it compiles from now on has its guards."""
    if _missed and "torch._dynamo.config" in sys.modules:
        _forget()
        held().renew()


class _Own(threading.local):
    def __init__(self) -> None:
        self.held = Held(_install)


_own, _process = _Own(), Held(_install)


def held() -> Held:
    """This thread's holders, where each thread has a configuration of its own; else those of the process."""
    return _own.held if cache_tag.is_threads_own_tag() else _process


def release_of_ended(count: int) -> None:
    """So many holders of a thread that has ended; a configuration of its own went with it."""
    if not cache_tag.is_threads_own_tag():
        _process.release(count)

"""Values of torch's configuration modules, above what programs set or in place of a default; the module need not be loaded."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from torch.utils._config_module import _UNSET_SENTINEL

from msctx.errors import SwitchError
from msctx.imports import when_imported
from msctx.torch_config import is_threads_own, override, put_override

INDUCTOR = "torch._inductor.config"
NOTHING, UNSET = object(), _UNSET_SENTINEL
_waiting: dict[str, Callable[[], None]] = {}
"""Module → what gives up waiting for it to be loaded."""
_all: dict[str, list[Forced]] = {}


def by_variable(name: str, default: str = "0") -> Callable[[], bool]:
    """What a key is when its module is loaded that takes its first value from an environment variable."""
    return lambda: os.environ.get(name, default) == "1"


class Forced:
    """A value in every thread, also where ``torch.compile`` is given another: ``mode="max-autotune"`` is for one compiled function
    what the configuration is for all.

    It is written where torch keeps a value that an environment variable forces. Such an option of ``torch.compile`` puts back, for
    the thread that compiled, what it has read before, and that is what is forced: what the thread had is kept with the state.
    While the module is not loaded, the value waits for that.
    """

    PLACE = "env_value_force"
    """The attribute of torch's entry that is written."""

    def __init__(self, module: str, key: str, unloaded: Callable[[], Any]) -> None:
        """*unloaded*: what the key will be when the module is loaded."""
        self.module, self.key, self.unloaded = module, key, unloaded
        self.forced: Any = NOTHING
        self._found: Any = NOTHING
        """What the environment forces, or the default, where something else stands in its place."""
        _all.setdefault(module, []).append(self)

    @property
    def entry(self) -> Any:
        """What the module knows of the key; None while it is not loaded, and in a version of torch without it."""
        return getattr(sys.modules.get(self.module), "_config", {}).get(self.key)

    @property
    def own(self) -> Any:
        """What this thread has set; :data:`NOTHING` while the module is not loaded."""
        return NOTHING if self.entry is None else override(sys.modules[self.module], self.key)

    def read(self) -> Any:
        if self.entry is None:
            forced = self.forced  # once: another thread may be writing
            return self.unloaded() if forced is NOTHING else forced
        return getattr(sys.modules[self.module], self.key)

    def save(self) -> tuple[Any, ...]:
        return self.forced, self.own

    def holds(self, value: Any) -> bool:
        return bool(self.forced == value)

    def write(self, value: Any) -> None:
        self.forced = value
        self._enforce()
        if self.entry is None and self.module not in _waiting:
            _waiting[self.module] = when_imported(self.module, lambda: _enforce_all(self.module))

    def load(self, state: tuple[Any, ...]) -> None:
        self.forced, own = state
        self._enforce(own)
        if self.module in _waiting and all(other.forced is NOTHING for other in _all[self.module]):
            _waiting.pop(self.module)()

    def when_loaded(self) -> None:
        """Called with a value in force, in a process that has loaded the module."""

    def _enforce(self, own: Any = None) -> None:
        """Have torch, where it is loaded, read what is forced; *own*: this thread's own value is to be this one, too."""
        if (entry := self.entry) is None:
            return
        own = self.own if own is None else UNSET if own is NOTHING else own
        if self.forced is not NOTHING:
            if self._found is NOTHING:
                self._found = getattr(entry, self.PLACE)
            setattr(entry, self.PLACE, self.forced)
            self.when_loaded()
        elif self._found is not NOTHING:
            setattr(entry, self.PLACE, self._found)
            self._found = NOTHING
        put_override(sys.modules[self.module], self.key, own)


def _enforce_all(module: str) -> None:
    _waiting.pop(module, None)
    for one in _all[module]:
        if one.forced is not NOTHING:
            one._enforce()


class Flag(Forced):
    """A truth value in every thread, unless ``torch.compile`` is given another.

    An assignment to the config module holds for the calling thread alone (trap 7), so the default is written, which all threads
    read; the thread's own value, too, where it has one.
    """

    PLACE = "default"

    def holds(self, value: bool) -> bool:
        return bool(self.read() == value)

    def save(self) -> tuple[Any, ...]:
        return self.forced, self.own, threading.current_thread()

    def write(self, value: bool) -> None:
        super().write(value)
        if isinstance(self.own, bool):
            put_override(sys.modules[self.module], self.key, value)

    def load(self, state: tuple[Any, ...]) -> None:
        forced, own, thread = state
        is_shared = self.entry is not None and not is_threads_own(sys.modules[self.module], self.key)
        if not is_shared and thread is not threading.current_thread():
            if isinstance(own, bool) and thread.is_alive():
                raise SwitchError(f"another thread has its own {self.module}.{self.key}: reset it there")
            own = self.own
        super().load((forced, own))

"""Entries of torch's configuration modules (``torch._inductor.config``, ``torch.compiler.config``): what a program has set, and
values above that or in place of a default; the module need not be loaded.

torch 2.13 keeps what is set for each thread, older versions (such as 2.11) for the process; neither has a public way to ask for it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from torch.utils._config_module import _UNSET_SENTINEL

from msctx.errors import SwitchError
from msctx.import_hooks import when_imported

INDUCTOR = "torch._inductor.config"
NOTHING, UNSET = object(), _UNSET_SENTINEL


def override(config: ModuleType, key: str) -> Any:
    """What a program has set *key* to; torch's own sentinel where nothing is set."""
    own = config._config[key].user_override
    return own.get() if isinstance(own, ContextVar) else own


def put_override(config: ModuleType, key: str, value: Any) -> None:
    """Put back what :func:`override` returned."""
    entry = config._config[key]
    setattr(config, key, entry.default)  # marks what is kept of the configuration as stale
    if isinstance(entry.user_override, ContextVar):
        entry.user_override.set(value)
    else:
        entry.user_override = value


def is_threads_own(config: ModuleType, key: str) -> bool:
    """Whether each thread has a value of its own."""
    return isinstance(config._config[key].user_override, ContextVar)


@contextmanager
def forced(config: ModuleType, key: str, value: Any) -> Iterator[None]:
    """Inside, a key has a value in every thread, also above one that a :class:`Forced` has written."""
    entry, own = config._config[key], override(config, key)
    before, entry.env_value_force = entry.env_value_force, value
    put_override(config, key, own)
    try:
        yield
    finally:
        entry.env_value_force = before
        put_override(config, key, own)


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

    def __init__(self, module: str, key: str, unloaded: Callable[[], Any], place: str = "env_value_force") -> None:
        """*unloaded*: what the key will be when the module is loaded. *place*: of torch's entry; ``"default"``: a value unless
        ``torch.compile`` is given another, or another thread has its own."""
        self.module, self.key, self.unloaded, self.place = module, key, unloaded, place
        self.forced: Any = NOTHING
        self._found: Any = NOTHING
        """What torch has in the place of what is forced."""
        when_imported(module, self._enforce)

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
        return self.forced, self.own, threading.current_thread()

    def holds(self, value: Any) -> bool:
        return bool((self.read() if self.place == "default" else self.forced) == value)

    def write(self, value: Any) -> None:
        self.forced = value
        self._enforce()

    def load(self, state: tuple[Any, ...]) -> None:
        forced, own, thread = state
        is_here = thread is threading.current_thread()
        if self.place == "default" and own not in (NOTHING, UNSET) and not is_here and thread.is_alive():
            raise SwitchError(f"another thread has its own {self.module}.{self.key}: reset it there")
        self.forced = forced
        self._enforce(own if is_here else None)

    def when_loaded(self) -> None:
        """Called with a value in force, in a process that has loaded the module."""

    def _enforce(self, own: Any = None) -> None:
        """Have torch, where it is loaded, read what is forced; *own*: this thread's own value is to be this one, too."""
        if (entry := self.entry) is None or (own is None and self.forced is NOTHING and self._found is NOTHING):
            return
        is_given, own = own is not None, self.own if own is None else UNSET if own is NOTHING else own
        if self.forced is not NOTHING:
            if self._found is NOTHING:
                self._found = getattr(entry, self.place)
            setattr(entry, self.place, self.forced)
            own = self.forced if self.place == "default" and own is not UNSET and not is_given else own
            self.when_loaded()
        elif self._found is not NOTHING:
            setattr(entry, self.place, self._found)
            self._found = NOTHING
        put_override(sys.modules[self.module], self.key, own)

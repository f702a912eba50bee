"""Entries of torch's configuration modules (``torch._inductor.config``, ``torch.compiler.config``): what a program has set, and
values above that or in place of a default; the module need not be loaded.

torch 2.13 keeps what is set for each thread, older versions (such as 2.11) for the process; neither has a public way to ask for it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from torch.utils._config_module import _UNSET_SENTINEL

from msctx.errors import SwitchError
from msctx.imports import when_imported

INDUCTOR = "torch._inductor.config"
NOTHING, UNSET = object(), _UNSET_SENTINEL
_waiting: dict[str, Callable[[], None]] = {}
"""Module → what gives up waiting for it to be loaded."""
_all: dict[str, list[Forced]] = {}


def override(config: ModuleType, key: str) -> Any:
    """What a program has set *key* to; torch's own sentinel where nothing is set."""
    own = _entry(config, key).user_override
    return own.get() if isinstance(own, ContextVar) else own


def put_override(config: ModuleType, key: str, value: Any) -> None:
    """Put back what :func:`override` returned."""
    entry = _entry(config, key)
    setattr(config, key, entry.default)  # marks what is kept of the configuration as stale
    if isinstance(entry.user_override, ContextVar):
        entry.user_override.set(value)
    else:
        entry.user_override = value


def is_threads_own(config: ModuleType, key: str) -> bool:
    """Whether each thread has a value of its own."""
    return isinstance(_entry(config, key).user_override, ContextVar)


def _entry(config: ModuleType, key: str) -> Any:
    return config._config[key]


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

    def __init__(self, module: str, key: str, unloaded: Callable[[], Any]) -> None:
        """*unloaded*: what the key will be when the module is loaded."""
        self.module, self.key, self.unloaded = module, key, unloaded
        self.forced: Any = NOTHING
        self._found: Any = NOTHING
        """What the environment forces, where something else stands in its place."""
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
                self._found = entry.env_value_force
            entry.env_value_force = self.forced
            self.when_loaded()
        elif self._found is not NOTHING:
            entry.env_value_force = self._found
            self._found = NOTHING
        put_override(sys.modules[self.module], self.key, own)


def _enforce_all(module: str) -> None:
    _waiting.pop(module, None)
    for one in _all[module]:
        if one.forced is not NOTHING:
            one._enforce()


class Flag:
    """A truth value of ``torch._inductor.config`` in every thread, unless ``torch.compile`` is given another.

    An assignment to the config module holds for the calling thread alone (trap 7), so the default is written, which all threads
    read; the thread's own value, too, where it has one. While inductor is not loaded, the environment variable that it reads when
    it loads stands for it; loading inside the scope is allowed for.
    """

    def __init__(self, key: str, variable: str, default: str) -> None:
        self.key, self.variable, self.default = key, variable, default

    @property
    def entry(self) -> Any:
        """What inductor knows of the key; None while it is not loaded."""
        return getattr(sys.modules.get(INDUCTOR), "_config", {}).get(self.key)

    def read(self) -> bool:
        if self.entry is None:
            return os.environ.get(self.variable, self.default) == "1"
        return bool(getattr(sys.modules[INDUCTOR], self.key))

    def save(self) -> tuple[str | None, bool | None, Any, threading.Thread]:
        entry, variable, here = self.entry, os.environ.get(self.variable), threading.current_thread()
        own = None if entry is None else override(sys.modules[INDUCTOR], self.key)
        return variable, None if entry is None else entry.default, own, here

    def write(self, on: bool) -> None:
        self._set_variable("1" if on else "0")
        if (entry := self.entry) is not None:
            config, entry.default = sys.modules[INDUCTOR], on
            own = override(config, self.key)
            put_override(config, self.key, on if isinstance(own, bool) else own)

    def load(self, state: tuple[str | None, bool | None, Any, threading.Thread]) -> None:
        variable, default, own, thread = state
        is_ours = thread is threading.current_thread() or (
            own is not None and not is_threads_own(sys.modules[INDUCTOR], self.key)
        )
        if isinstance(own, bool) and not is_ours and thread.is_alive():
            raise SwitchError(f"another thread has its own torch._inductor.config.{self.key}: reset it there")
        self._set_variable(variable)
        entry = self.entry
        if entry is None:
            return
        if default is None:  # it was loaded inside the scope: as if it had been loaded before
            default, own = (self.default if variable is None else variable) == "1", UNSET
        entry.default = default
        config = sys.modules[INDUCTOR]
        put_override(config, self.key, own if is_ours else override(config, self.key))

    def _set_variable(self, value: str | None) -> None:
        if value is None:
            os.environ.pop(self.variable, None)
        else:
            os.environ[self.variable] = value

"""Switches of inductor's configuration, which must be written without loading inductor: that takes a second."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

from msctx.switches.base import Switch

_MODULE = "torch._inductor.config"


class _Flag:
    """A truth value of ``torch._inductor.config`` in every thread.

    An assignment to the config module holds for the calling thread alone (trap 7), so the default, which all other threads
    read, is written too. While inductor is not loaded, the environment variable that it reads when it loads stands for it; loading
    inside the scope is allowed for.
    """

    def __init__(self, key: str, variable: str, default: str) -> None:
        self.key, self.variable, self.default = key, variable, default

    def entry(self) -> Any:
        config = sys.modules.get(_MODULE)
        return config._config[self.key] if config is not None and hasattr(config, "_config") else None

    def read(self) -> bool:
        if self.entry() is None:
            return os.environ.get(self.variable, self.default) == "1"
        return bool(getattr(sys.modules[_MODULE], self.key))

    def save(self) -> tuple[str | None, bool | None, Any]:
        entry, variable = self.entry(), os.environ.get(self.variable)
        return (variable, None, None) if entry is None else (variable, entry.default, entry.user_override.get())

    def write(self, on: bool) -> None:
        self._set_variable("1" if on else "0")
        if (entry := self.entry()) is not None:
            entry.default = on
            setattr(sys.modules[_MODULE], self.key, on)

    def load(self, state: tuple[str | None, bool | None, Any]) -> None:
        variable, default, override = state
        self._set_variable(variable)
        entry = self.entry()
        if entry is None:
            return
        config = sys.modules[_MODULE]
        if default is None:  # it was loaded inside the scope: as if it had been loaded before
            from torch.utils._config_module import _UNSET_SENTINEL

            default, override = (self.default if variable is None else variable) == "1", _UNSET_SENTINEL
        entry.default = default
        setattr(config, self.key, default)  # marks the thread's caches of the configuration as stale
        entry.user_override.set(override)

    def _set_variable(self, value: str | None) -> None:
        if value is None:
            os.environ.pop(self.variable, None)
        else:
            os.environ[self.variable] = value


_FLAGS = {
    "deterministic": ("TORCHINDUCTOR_DETERMINISTIC", "0"),
    "freezing": ("TORCHINDUCTOR_FREEZING", "0"),
    "cpp_wrapper": ("TORCHINDUCTOR_CPP_WRAPPER", "0"),
    "layout_optimization": ("TORCHINDUCTOR_LAYOUT_OPTIMIZATION", "0" if torch.version.hip else "1"),
}
"""Key of the configuration → the environment variable from which it takes its first value, and what an absent one means."""


def _switch(key: str, variable: str, default: str) -> Switch:
    flag = _Flag(key, variable, default)
    return Switch(name=f"torch.inductor.{key}", read=flag.read, write=flag.write, save=flag.save, load=flag.load)


SWITCHES = tuple(_switch(key, *variable) for key, variable in _FLAGS.items())

"""Entries of torch's configuration modules (``torch._inductor.config``, ``torch.compiler.config``): what a program has set.

torch 2.13 keeps it for each thread, older versions (such as 2.11) for the process; neither has a public way to ask if it was set.
"""

from __future__ import annotations

from contextvars import ContextVar
from types import ModuleType
from typing import Any


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

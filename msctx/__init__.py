"""One context for how PyTorch executes: MindSpore's context options, carried out in PyTorch, scoped and restored exactly."""

from importlib import import_module
from typing import Any

from msctx._version import __version__
from msctx.context import context, current, explain, get_context, reset_context, set_context
from msctx.errors import (
    DeviceError,
    MsctxError,
    MsctxWarning,
    OptionError,
    RestoreError,
    ScopeError,
    StrictError,
    SwitchError,
)
from msctx.inspection import diff, state

__all__ = [
    "DeviceError",
    "MsctxError",
    "MsctxWarning",
    "OptionError",
    "RestoreError",
    "ScopeError",
    "StrictError",
    "SwitchError",
    "__version__",
    "context",
    "current",
    "diff",
    "explain",
    "get_context",
    "reset_context",
    "set_context",
    "state",
]


def __getattr__(name: str) -> Any:
    """``msctx.run``, for scripts that log to the run they are part of; loaded when it is first asked for."""
    if name == "run":
        return import_module("msctx.run")
    raise AttributeError(f"module 'msctx' has no attribute {name!r}")

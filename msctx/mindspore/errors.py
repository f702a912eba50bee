"""The exceptions that MindSpore raises, as errors of msctx."""

from __future__ import annotations

from msctx.errors import MsctxError, _ProblemsError


class OptionTypeError(_ProblemsError, TypeError):
    """A value of the wrong type. Nothing was changed."""

    exit_code = 2


class OptionRuntimeError(_ProblemsError, RuntimeError):
    """What can be set only once. Nothing was changed."""

    exit_code = 2


class NotSupportedError(MsctxError, NotImplementedError):
    """A function of MindSpore that msctx knows and has nothing for. Nothing was changed."""

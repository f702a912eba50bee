"""The exceptions that MindSpore raises, as errors of msctx: what is wrong, all of it at once, and nothing was changed."""

from __future__ import annotations

from msctx.errors import Diagnostic, MsctxError, OptionError, _ProblemsError


class OptionTypeError(_ProblemsError, TypeError):
    """A value of the wrong type, or one that must not be changed any more. Nothing was changed."""

    exit_code = 2


class OptionRuntimeError(_ProblemsError, RuntimeError):
    """What MindSpore's C++ side rejects: numbers that do not fit, and what can be set only once. Nothing was changed."""

    exit_code = 2


class OptionPathError(_ProblemsError, OSError):
    """A path that leads to something else than it should. Nothing was changed."""

    exit_code = 2


class NotCarriedOut(MsctxError, NotImplementedError):
    """A function of MindSpore that msctx knows and has nothing for. Nothing was changed."""


KINDS: dict[type[Exception], type[_ProblemsError]] = {
    TypeError: OptionTypeError,
    ValueError: OptionError,
    RuntimeError: OptionRuntimeError,
    OSError: OptionPathError,
}
"""MindSpore's exception → ours of the same kind."""

Problems = list[tuple[type[Exception], Diagnostic]]
"""What is wrong, each with what MindSpore raises for it."""


def raise_first(problems: Problems) -> None:
    """Raise, if anything is wrong, what MindSpore raises for the first problem; the message lists all."""
    if problems:
        raise KINDS[problems[0][0]]([problem for _, problem in problems])

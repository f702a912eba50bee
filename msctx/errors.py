"""Every message a user can see about a mistake: where it is, what was given, what is allowed, what to do.

Each error class carries the exit code with which the command line ends.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

MOST = 100
"""Mistakes of one place that are looked for at once; nobody reads thousands, and to look for a name takes milliseconds."""

LONGEST_LINE = 400
"""A longer line of a file is not shown."""


def one_line(text: str, longest: int = 120) -> str:
    """A text for a comment or a message: no line breaks, nothing that cannot be printed, and not without end."""
    text = " ".join(text.split())
    text = text if len(text) <= longest else f"{text[: longest - 1]}…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def text_of(value: object) -> str:
    """``str`` of what a program made, its exceptions above all; where that raises, as Python's tracebacks show it."""
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__} str() failed>"


def named(error: BaseException) -> str:
    """An exception with its kind."""
    return f"{type(error).__name__}: {text_of(error)}".removesuffix(": ")


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a text file; *line* and *column* count from 1, *text* is the whole line, *width* what to underline."""

    file: str
    line: int
    column: int
    text: str = ""
    width: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


Marks = Callable[[tuple[Any, ...]], Mark | None]
"""Gives the place in a file of the value at a path of keys; ``(..., "")`` requests the key itself."""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One thing that is wrong with what a user gave."""

    path: str
    text: str
    where: str = ""
    allowed: str = ""
    suggestion: str = ""
    mark: Mark | None = None

    def __str__(self) -> str:
        where = str(self.mark) if self.mark else self.where
        path = one_line(self.path, 400)
        lines = [f"{where}  " * bool(where) + f"{path}: " * bool(path) + self.text]
        hint = f"did you mean {self.suggestion}?" if self.suggestion and " " not in self.suggestion else self.suggestion
        if self.mark and 0 < len(self.mark.text) <= LONGEST_LINE:
            shown = "".join(c if c.isprintable() or c == "\t" else " " for c in self.mark.text)
            number = f"{self.mark.line:5d}"
            before = "".join(c if c == "\t" else " " for c in shown[: self.mark.column - 1].ljust(self.mark.column - 1))
            caret = before + "^" * max(1, self.mark.width)
            lines += [f"{number} | {shown}", f"{' ' * len(number)} | {caret} {hint}".rstrip()]
        elif hint:
            lines[0] += f"; {hint}"
        if self.allowed:
            lines.append(f"      allowed: {self.allowed}")
        return "\n".join(lines)


def nearest(name: str, names: Iterable[str]) -> str:
    """The one of *names* that a user most likely meant, or ``""``."""
    return next(iter(get_close_matches(name, list(names), n=1, cutoff=0.65)), "")


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """``"; did you mean x?"``, or nothing, to end a sentence with."""
    near = nearest(name, names)
    return f"; did you mean {near}?" if near else ""


class MsctxError(Exception):
    """What every error of msctx derives from."""

    exit_code = 1


class _ProblemsError(MsctxError):
    end = "nothing was changed"

    def __init__(self, problems: Sequence[Diagnostic]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        end = f"{'the first ' * (count >= MOST)}{count} problem{'s' * (count != 1)}; {self.end}."
        super().__init__("\n".join([*map(str, self.problems), end]))

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle and copy: the default calls the class with the message, which it would take for problems."""
        return type(self), (self.problems,), self.__dict__


class OptionError(_ProblemsError, ValueError):
    """Unknown options, wrong values, contradictions: all of them at once. Nothing was changed."""

    exit_code = 2


class FileError(_ProblemsError):
    """A file that is not there, cannot be read, or is not YAML."""

    exit_code = 3


class RecordError(FileError):
    """The record of a run that has ended cannot be written."""

    end = "the run has ended, and everything was restored"


class EntryError(MsctxError):
    """The entry of an experiment cannot be found or imported."""

    exit_code = 4


class EntryFailed(MsctxError):
    """The entry of an experiment raised; the traceback shown is the user's own."""

    exit_code = 5


class DeviceError(MsctxError, RuntimeError):
    """A device was requested that is not here."""

    exit_code = 6

    @classmethod
    def missing(cls, target: str, here: Sequence[str]) -> DeviceError:
        return cls(
            f"device_target={target!r}: there is no such device here (found: {', '.join(here)}). Nothing was changed. "
            f"`msctx explain device_target={target}` shows the plan without entering it; `msctx doctor` lists what is missing."
        )


class StrictError(MsctxError, RuntimeError):
    """``strict=True``, and an option would have no effect; or ``fallback="error"``, and no convolution could
    run the algorithm that was named. Nothing was changed."""

    exit_code = 7

    @classmethod
    def of(cls, reasons: Sequence[str], requested: str = "strict=True", what: str = "would have no effect") -> StrictError:
        lines = "\n".join(f"  {r}" for r in reasons)
        name = requested.partition("=")[0]
        return cls(f"{requested}, and these options {what}:\n{lines}\nNothing was changed. Remove these options, or {name}.")


class ScopeError(MsctxError, RuntimeError):
    """A context was entered or left where that would corrupt another one. Nothing was changed."""

    @classmethod
    def held(cls, owner: str, switch: str, other: str) -> ScopeError:
        return cls(
            f"{owner}: {switch} belongs to the whole process, and the {other} of another thread, which is still open, has set "
            "it. Enter one context around both threads and carry it over with msctx.current().bind(fn), or close the other "
            "scope first. Nothing was changed."
        )


class SwitchError(MsctxError, RuntimeError):
    """A switch of torch or of the system did not take a value. Everything already written was restored."""

    @classmethod
    def refused(cls, switch: str, value: Any, why: str) -> SwitchError:
        return cls(f"{switch} did not take {value!r}: {why}. Nothing was changed.")


class RestoreError(MsctxError, RuntimeError):
    """At exit a setting could not be restored, or other code had changed it (under ``strict=True``)."""

    @classmethod
    def changed(cls, owner: str, lines: Sequence[str]) -> RestoreError:
        text = f"Other code changed inside the {owner} what it had set: part of the block ran without it. "
        return cls("\n".join([f"{text}The values from before the block are restored:", *lines]))


class GraphError(MsctxError, RuntimeError):
    """Code that cannot be compiled, where options allow nothing else."""

    @classmethod
    def of(cls, where: str, what: str, hints: Sequence[str]) -> GraphError:
        end = "jit_syntax_level='STRICT' forbids this; 'LAX' runs it eagerly, between compiled parts."
        return cls("\n".join([f"{where}: {what}", *(f"  {hint}" for hint in hints), end]))

    @classmethod
    def shape(cls, what: str, option: str, allowed: Sequence[str]) -> GraphError:
        lines = "".join(f"\n  {one}" for one in allowed)
        return cls(f"{what}, which {option} does not list. Allowed:{lines}")


class GradientError(MsctxError, ValueError):
    """A hand-written backward returned too few or too many gradients, one of another shape than its input, or a wrong one."""


class GradientDtypeError(MsctxError, TypeError):
    """A hand-written backward returned a gradient of another dtype than its input, or something that is no tensor."""


class NativeError(MsctxError, RuntimeError):
    """The native core cannot be built or loaded, or the cached one must not be loaded. PyTorch's implementations still work."""

    exit_code = 8


class MsctxWarning(UserWarning):
    """An option has no effect, or another one than it names."""


_OURS = re.compile(r"(msctx|torch|contextlib)(\.|$)")
_GENERATED = re.compile(r"^<eval_with_key>|:codegen\(")  # the files of code that torch writes, which has no name


def user_frame() -> tuple[str, int]:
    """``file.py:line`` of the nearest caller that is not msctx or torch, and its stack level seen from our caller."""
    frame, level = sys._getframe(1), 1
    while _OURS.match(frame.f_globals.get("__name__", "")) or _GENERATED.search(frame.f_code.co_filename):
        if frame.f_back is None:  # the program has ended
            return "", level + 1
        frame, level = frame.f_back, level + 1
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}", level

"""MindSpore's checks of values: what passes, and which exception everything else raises.

They follow MindSpore to the letter where it is odd: membership is by ``==``, so that 1 is True; a bool is an int; what passes
Python's check may still be rejected by the C++ side, with a RuntimeError. A check returns the value in msctx's form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

from msctx.errors import Diagnostic, OptionError, nearest
from msctx.mindspore.errors import Problems
from msctx.options import make_layer
from msctx.options.kinds import BadValue, MemoryKind, show

GB = 2**30


class Nothing(Exception):
    """Raised by a check when nothing is to be set: the value is wrong, or it is accepted and ignored."""


class Note(NamedTuple):
    """A note on a value that is not wrong; under ``strict=True`` an error, where something is left out."""

    name: str
    text: str
    left_out: bool


@dataclass
class Look:
    """One value that is checked: collects what is wrong with it, and notes on it."""

    name: str
    where: str
    problems: Problems
    notes: list[Note]

    def wrong(self, kind: type[Exception], text: str, allowed: str = "", suggestion: str = "") -> NoReturn:
        self.problems.append((kind, Diagnostic(self.name, text, self.where, allowed, suggestion)))
        raise Nothing

    def note(self, text: str) -> None:
        self.notes.append(Note(self.name, text, False))

    def drop(self, text: str) -> NoReturn:
        """Accept a value and leave it out."""
        self.notes.append(Note(self.name, text, True))
        raise Nothing

    def inside(self, key: Any) -> Look:
        return Look(f"{self.name}.{key}", self.where, self.problems, self.notes)


Check = Callable[[Any, Look], Any]
"""A check of one value."""


class Parts(dict[str, Any]):
    """What a check returns for several options at once: their values by msctx's spellings; ``UNSET`` takes one back."""


def is_a(value: Any) -> str:
    """Says of which type a value is."""
    if value is None:
        return "None is not a value"
    name = type(value).__name__
    return f"{show(value)} is {'an' if name[:1].lower() in 'aeio' else 'a'} {name}"


def has_type(value: Any, types: tuple[type, ...], look: Look) -> bool:
    """The check of MindSpore's decorators: None always passes, as does everything if there are no *types*."""
    if value is None or not types or isinstance(value, types):
        return True
    with suppress(Nothing):
        look.wrong(TypeError, is_a(value), " or ".join(t.__name__ for t in types))
    return False


@dataclass(frozen=True)
class Is:
    """A value of one type. The C++ side raises RuntimeError for others."""

    wanted: type
    kind: type[Exception] = TypeError

    def __call__(self, value: Any, look: Look) -> Any:
        if not isinstance(value, self.wanted):
            look.wrong(self.kind, is_a(value), self.wanted.__name__)
        return value


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # arrays and the like
        return False


@dataclass(frozen=True)
class OneOf:
    """One of a list.

    Attributes:
        values: the list; a dictionary also gives msctx's name for each.
        kind: what anything else raises.
        binding: the type that the C++ side requires.
        advice: value → a note on it.
    """

    values: tuple[Any, ...] | Mapping[Any, Any]
    kind: type[Exception] = ValueError
    binding: type = object
    advice: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, value: Any, look: Look) -> Any:
        allowed = ", ".join(f'"{v}"' if isinstance(v, str) and v.isdigit() else str(v) for v in self.values)
        for known in self.values:
            if _equal(known, value):
                if not isinstance(value, self.binding):
                    look.wrong(RuntimeError, f"{is_a(value)}, which MindSpore's C++ side rejects", allowed)
                return self.values[known] if isinstance(self.values, Mapping) else known
        text, hint = f"{show(value)} is not one of the values", ""
        if isinstance(value, str) and value in self.advice:
            text += f": {self.advice[value]}"
        elif isinstance(value, str):
            by_case = {str(v).lower(): repr(v) for v in self.values}
            hint = by_case.get(nearest(value.lower(), by_case), "")
        return look.wrong(self.kind, text, allowed, hint)


@dataclass(frozen=True)
class Number:
    """A whole number within limits; what is too large for the C++ side is a RuntimeError.

    Attributes:
        plain: a bool or a float is a TypeError.
        most: larger values are clipped to it, with a note.
    """

    minimum: int
    maximum: int | None = None
    plain: bool = False
    most: int | None = None

    TOP = 2**32 - 1

    @property
    def allowed(self) -> str:
        more = "" if self.most is None else f"; larger values are clipped to {self.most}"
        return f"int from {self.minimum} to {self.TOP if self.maximum is None else self.maximum}{more}"

    def __call__(self, value: Any, look: Look) -> Any:
        allowed = self.allowed
        if not isinstance(value, int if self.plain else int | float) or (self.plain and isinstance(value, bool)):
            look.wrong(TypeError, is_a(value), allowed)
        if value < self.minimum or (self.maximum is not None and value > self.maximum):
            look.wrong(ValueError, f"{show(value)} is out of range", allowed)
        if not isinstance(value, int):
            look.wrong(RuntimeError, is_a(value), allowed)
        if value > self.TOP:
            look.wrong(RuntimeError, f"{show(value)} does not fit in 32 bits", allowed)
        if self.most is not None and value > self.most:
            look.note(f"{value} is clipped to {self.most}, the most that msctx accepts")
            return self.most
        return int(value)


def save_graphs(value: Any, look: Look) -> Any:
    """0 to 3, True for 2; negative numbers pass, and mean none."""
    allowed = "0 to 3, False (0), True (2)"
    if not isinstance(value, bool | int):
        look.wrong(TypeError, is_a(value), allowed)
    if value > 3:
        look.wrong(ValueError, f"{show(value)} is out of range", allowed)
    return 2 * value if isinstance(value, bool) else max(int(value), 0)


def threshold(value: Any, look: Look) -> Any:
    """Any whole number; MindSpore checks the type alone, and a bool is an int."""
    clipped = min(max(int(Is(int)(value, look)), 0), 2**63 - 1)
    if isinstance(value, bool) or clipped != value:
        look.note(f"{show(value)} is read as {clipped}")
    return clipped


def compile_cache(value: Any, look: Look) -> Any:
    """A bool; without the decorator anything that ``int()`` accepts."""
    try:
        return bool(int(value))
    except (ValueError, TypeError, OverflowError) as error:  # text; not a number; infinity
        kind = ValueError if isinstance(error, ValueError) else TypeError
        look.wrong(kind, f"{show(value)} is not a bool", "bool")


# --- sizes ------------------------------------------------------------------------------------------------------------

SIZE = r"[1-9][0-9]*(\.)?[0-9]*GB|0\.[0-9]*GB"
RESERVE = r"[0-9][0-9]*(\.)?[0-9]*GB|0\.[0-9]*GB"


@dataclass(frozen=True)
class Size:
    """``"4GB"``, ``"3.5GB"``: upper case, GB alone, no blanks; in bytes for msctx.

    Attributes:
        least: the smallest number of GB.
        most: the largest, which also must be whole.
        zero: these spellings of nothing are rejected (all, where ``None``).
        pattern: what the text must begin with.
    """

    least: float = 0.0
    most: float | None = None
    zero: tuple[str, ...] | None = None
    pattern: str = SIZE

    def __call__(self, value: Any, look: Look) -> Any:
        allowed = 'a size in GB such as "4GB" or "3.5GB"' + f", at least {self.least:g}GB" * bool(self.least)
        if self.most is not None:
            allowed = f'a whole number of GB up to {self.most:g}, such as "4GB"'
        if not isinstance(value, str):
            look.wrong(TypeError, is_a(value), allowed)
        if text := self._wrong(value):
            meant = _size_meant(value)
            look.wrong(ValueError, text, allowed, f'"{meant}"' if meant and not self._wrong(meant) else "")
        return int(float(value[:-2]) * GB)

    def _wrong(self, value: str) -> str:
        """What is wrong with a text, or nothing."""
        try:
            number = float(value[:-2]) if re.match(self.pattern, value, re.ASCII) else None
        except ValueError:
            number = None
        if number is None:
            return f"{show(value)} is not a size in MindSpore's form"
        if self.most is not None and "." in value:
            return f"{show(value)} is not a whole number of GB: decimals are rejected"
        if number < self.least or (self.most is not None and number > self.most) or number * GB >= 2**63:
            return f"{show(value)} is out of range"
        if number * GB < 1 if self.zero is None else value in self.zero:
            return f"{show(value)} is not more than zero"
        return ""


def _size_meant(value: str) -> str:
    """The same size in MindSpore's form, where msctx understands it."""
    try:
        return f"{gigabytes(MemoryKind().parse(value)):g}GB"
    except BadValue:
        return ""


def gigabytes(size: int) -> float:
    """Bytes as MindSpore's number of GB, to the digits that a C float has."""
    return float(f"{size / GB:.7g}")


# --- flags ------------------------------------------------------------------------------------------------------------


def graph_kernel_flags(value: Any, look: Look) -> Any:
    """Flags in one text. MindSpore only logs unknown ones, so they are dropped with a warning."""
    kept: dict[str, str] = {}
    for flag in Is(str, RuntimeError)(value, look).split():
        name, _, number = flag.partition("=")
        if name == "--opt_level" and number.isdecimal() and int(number) > 3:
            look.note(f"{flag} is clipped to 3")
            flag = "--opt_level=3"
        try:
            make_layer({"graph_kernel_flags": flag}, look.where)
        except OptionError as error:
            hint = error.problems[0].suggestion
            with suppress(Nothing):
                look.drop(f"{show(flag)} is ignored: {error.problems[0].text}" + f" ({hint})" * bool(hint))
            continue
        if name in kept:
            look.note(f"{name} appears twice: the last one applies")
        kept[name] = flag
    return " ".join(kept.values())


# --- dictionaries -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """A dictionary with known keys: ``gpu_config`` and its like. Its check returns what is set by msctx's spellings.

    Attributes:
        keys: its keys.
        spelled: msctx's spelling of one: ``"gpu_config.{}"``.
    """

    keys: Mapping[str, Check]
    spelled: str = "{}"

    def __call__(self, value: Any, look: Look) -> Any:
        options = Parts()
        for key, part in Is(dict)(value, look).items():
            inner = look.inside(key)
            with suppress(Nothing):
                if key not in self.keys:
                    hint = nearest(key, self.keys) if isinstance(key, str) else ""
                    inner.wrong(ValueError, f"{look.name} has no such key", ", ".join(self.keys), hint)
                options[self.spelled.format(key)] = self.keys[key](part, inner)
        return options


@dataclass(frozen=True)
class Each:
    """A dictionary from any text to values that pass one check."""

    check: Check

    def __call__(self, value: Any, look: Look) -> Any:
        for key, part in Is(dict)(value, look).items():
            for given, check in ((key, Is(str)), (part, self.check)):
                with suppress(Nothing):
                    check(given, look.inside(key))
        return value


@dataclass(frozen=True)
class Unheld:
    """A value that is checked as MindSpore checks it, and then dropped with a warning: msctx has no option for it."""

    text: str
    check: Check = lambda value, look: value

    def __call__(self, value: Any, look: Look) -> Any:
        self.check(value, look)
        look.drop(self.text)

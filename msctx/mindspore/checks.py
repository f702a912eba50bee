"""The checks that MindSpore makes of values, each a small object: what passes, and which exception the rest is.

They follow MindSpore to the letter where it is odd: membership goes by ``==``, so that 1 is True; a bool is an int; what passes
Python's check may still be refused by the C++ side, with a RuntimeError. A check returns the value in msctx's form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from msctx.errors import Diagnostic, OptionError, nearest
from msctx.mindspore.errors import Found
from msctx.options import find, make_layer
from msctx.options.kinds import BadValue, MemoryKind, show

DROP: Any = type("Drop", (), {"__repr__": lambda self: "nothing to set"})()
"""What a check returns for a value that is wrong, or accepted and of no effect."""

GB = 2**30


class Note(NamedTuple):
    """A note on a value that is not wrong; under ``strict=True`` an error, where something is left out."""

    name: str
    text: str
    left_out: bool


class Look:
    """One value that is looked at: collects what is wrong with it, and notes on it."""

    def __init__(self, name: str, where: str, found: list[Found], notes: list[Note]) -> None:
        self.name, self.where, self.found, self.notes = name, where, found, notes

    def wrong(self, kind: type[Exception], text: str, allowed: str = "", suggestion: str = "") -> Any:
        self.found.append((kind, Diagnostic(self.name, text, self.where, allowed, suggestion)))
        return DROP

    def note(self, text: str) -> None:
        self.notes.append(Note(self.name, text, False))

    def drop(self, text: str) -> Any:
        """Accept something and leave it out."""
        self.notes.append(Note(self.name, text, True))
        return DROP

    def inside(self, key: Any) -> Look:
        return Look(f"{self.name}.{key}", self.where, self.found, self.notes)

    def type(self, value: Any, types: tuple[type, ...]) -> bool:
        """The check of MindSpore's decorators: None is not looked at, and a bool is an int."""
        if value is None or not types or isinstance(value, types):
            return True
        self.wrong(TypeError, is_a(value), " or ".join(t.__name__ for t in types))
        return False


class Parts(dict[str, Any]):
    """What a check returns for several options at once: their values by msctx's spellings; ``UNSET`` takes one back."""


class Check(Protocol):
    """A check of one value."""

    def __call__(self, value: Any, look: Look) -> Any: ...


def is_a(value: Any) -> str:
    """Says of which type a value is."""
    if value is None:
        return "None is not a value"
    name = type(value).__name__
    return f"{show(value)} is {'an' if name[:1].lower() in 'aeio' else 'a'} {name}"


def _word(value: Any) -> str:
    """A value as messages list it; text that looks like a number is quoted."""
    return f'"{value}"' if isinstance(value, str) and value.isdigit() else str(value)


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
        kind: what anything else is.
        binding: what the C++ side takes in the end.
        advice: value → a note on it.
    """

    values: tuple[Any, ...] | Mapping[Any, Any]
    kind: type[Exception] = ValueError
    binding: type | None = None
    advice: Mapping[str, str] = field(default_factory=dict)

    @property
    def allowed(self) -> str:
        return ", ".join(map(_word, self.values))

    def __call__(self, value: Any, look: Look) -> Any:
        for known in self.values:
            if _equal(known, value):
                if self.binding is not None and not isinstance(value, self.binding):
                    text = f"{is_a(value)}, which MindSpore's C++ side rejects"
                    return look.wrong(RuntimeError, text, self.allowed)
                return self.values[known] if isinstance(self.values, Mapping) else known
        text = f"{show(value)} is not one of the values"
        near = nearest(value.lower(), [str(v).lower() for v in self.values]) if isinstance(value, str) else ""
        hint = next((v for v in self.values if str(v).lower() == near), "") if near else ""
        if isinstance(value, str) and value in self.advice:
            text, hint = f"{text}: {self.advice[value]}", ""
        return look.wrong(self.kind, text, self.allowed, repr(hint) if hint != "" else "")


@dataclass(frozen=True)
class Bound:
    """What the C++ side checks alone: the type."""

    binding: type

    def __call__(self, value: Any, look: Look) -> Any:
        if isinstance(value, self.binding):
            return value
        return look.wrong(RuntimeError, is_a(value), self.binding.__name__)


@dataclass(frozen=True)
class Is:
    """What Python's code checks to be of one type."""

    wanted: type
    kind: type[Exception] = TypeError

    def __call__(self, value: Any, look: Look) -> Any:
        if isinstance(value, self.wanted):
            return value
        return look.wrong(self.kind, is_a(value), self.wanted.__name__)


@dataclass(frozen=True)
class Text:
    """Text, and one of a list."""

    one_of: OneOf

    def __call__(self, value: Any, look: Look) -> Any:
        return DROP if Is(str)(value, look) is DROP else self.one_of(value, look)


@dataclass(frozen=True)
class Number:
    """A whole number within limits; what is too large for the C++ side is a RuntimeError.

    Attributes:
        plain: a bool is none.
        most: the most that msctx takes; what is more is clipped to it, with a note.
    """

    minimum: int
    maximum: int | None = None
    top: int = 2**32 - 1
    plain: bool = False
    most: int | None = None

    @property
    def allowed(self) -> str:
        more = "" if self.most is None else f"; larger values are clipped to {self.most}"
        return f"int from {self.minimum} to {self.top if self.maximum is None else self.maximum}{more}"

    def __call__(self, value: Any, look: Look) -> Any:
        if not isinstance(value, int if self.plain else int | float) or (self.plain and isinstance(value, bool)):
            return look.wrong(TypeError, is_a(value), self.allowed)
        if value < self.minimum or (self.maximum is not None and value > self.maximum):
            return look.wrong(ValueError, f"{show(value)} is out of range", self.allowed)
        if not isinstance(value, int):
            return look.wrong(RuntimeError, is_a(value), self.allowed)
        if value > self.top:
            return look.wrong(RuntimeError, f"{show(value)} does not fit in {self.top.bit_length()} bits", self.allowed)
        if self.most is not None and value > self.most:
            look.note(f"{value} is clipped to {self.most}, the most that msctx accepts")
            return self.most
        return int(value)


def save_graphs(value: Any, look: Look) -> Any:
    """0 to 3, True for 2; negative numbers pass, and mean none."""
    allowed = "0 to 3, False (0), True (2)"
    if not isinstance(value, bool | int):
        return look.wrong(TypeError, is_a(value), allowed)
    if value > 3:
        return look.wrong(ValueError, f"{show(value)} is out of range", allowed)
    return 2 * value if isinstance(value, bool) else max(int(value), 0)


def threshold(value: Any, look: Look) -> Any:
    """Any whole number; MindSpore checks the type alone, and a bool is an int."""
    if Is(int)(value, look) is DROP:
        return DROP
    taken = min(max(int(value), 0), 2**63 - 1)
    if isinstance(value, bool) or taken != value:
        look.note(f"{show(value)} is read as {taken}")
    return taken


def compile_cache(value: Any, look: Look) -> Any:
    """A bool; without the decorator anything that ``int()`` takes."""
    try:
        return bool(int(value))
    except ValueError:
        return look.wrong(ValueError, f"{show(value)} is not a bool", "bool")
    except (TypeError, OverflowError):  # no number at all; one without end
        return look.wrong(TypeError, f"{show(value)} is not a bool", "bool")


# --- sizes ------------------------------------------------------------------------------------------------------------

SIZE = r"[1-9][0-9]*(\.)?[0-9]*GB|0\.[0-9]*GB"
RESERVE = r"[0-9][0-9]*(\.)?[0-9]*GB|0\.[0-9]*GB"


@dataclass(frozen=True)
class Size:
    """``"4GB"``, ``"3.5GB"``: upper case, GB alone, no blanks; in bytes for msctx.

    Attributes:
        least: the least number of GB.
        most: the most, which also must be whole.
        zero: these spellings of nothing are refused (all, where ``None``).
        pattern: what the text must begin with.
    """

    least: float = 0.0
    most: float | None = None
    zero: tuple[str, ...] | None = None
    pattern: str = SIZE

    @property
    def allowed(self) -> str:
        if self.most is not None:
            return f'a whole number of GB up to {self.most:g}, such as "4GB"'
        return 'a size in GB such as "4GB" or "3.5GB"' + f", at least {self.least:g}GB" * bool(self.least)

    def __call__(self, value: Any, look: Look) -> Any:
        if not isinstance(value, str):
            return look.wrong(TypeError, is_a(value), self.allowed)
        if text := self._wrong(value):
            meant = _size_meant(value)
            return look.wrong(ValueError, text, self.allowed, f'"{meant}"' if meant and not self._wrong(meant) else "")
        return int(float(value[:-2]) * GB)

    def _wrong(self, value: str) -> str:
        """What is wrong with a text, or nothing."""
        number = _number(value) if re.match(self.pattern, value, re.ASCII) else None
        if number is None:
            return f"{show(value)} is not a size in MindSpore's form"
        if self.most is not None and "." in value:
            return f"{show(value)} is not a whole number of GB: decimals are rejected"
        if number < self.least or (self.most is not None and number > self.most) or number * GB >= 2**63:
            return f"{show(value)} is out of range"
        if number * GB < 1 if self.zero is None else value in self.zero:
            return f"{show(value)} is not more than zero"
        return ""


def _number(size: str) -> float | None:
    try:
        return float(size[:-2])
    except ValueError:
        return None


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
    """Flags in one text. MindSpore only logs those that it does not understand, and so they are dropped with a warning."""
    if Bound(str)(value, look) is DROP:
        return DROP
    kept: dict[str, str] = {}
    for flag in value.split():
        name, _, number = flag.partition("=")
        if name == "--opt_level" and number.isdecimal() and int(number) > 3:
            look.note(f"{flag} is clipped to 3")
            flag = "--opt_level=3"
        try:
            make_layer({"graph_kernel_flags": flag}, look.where)
        except OptionError as error:
            problem = error.problems[0]
            known = "" if find(f"graph_kernel_flags.{name.removeprefix('--')}") else "; msctx knows opt_level and dump_as_text"
            look.drop(f"{show(flag)} is ignored: {problem.text}{known}")
            continue
        if name in kept:
            look.note(f"{name} appears twice: the last one applies")
        kept[name] = flag
    return " ".join(kept.values())


# --- dictionaries -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """A dictionary of options: ``gpu_config`` and its like. Its check returns what is set by msctx's spellings.

    Attributes:
        keys: its keys.
        spelled: msctx's spelling of one: ``"gpu_config.{}"``.
    """

    keys: Mapping[str, Check]
    spelled: str

    def __call__(self, value: Any, look: Look) -> Any:
        if not isinstance(value, dict):
            return look.wrong(TypeError, is_a(value), "dict")
        options = Parts()
        for key, part in value.items():
            inner = look.inside(key)
            if key not in self.keys:
                hint = nearest(key, self.keys) if isinstance(key, str) else ""
                inner.wrong(ValueError, f"{look.name} has no such key", ", ".join(self.keys), hint)
            elif (found := self.keys[key](part, inner)) is not DROP:
                options[self.spelled.format(key)] = found
        return options


def ge_options(value: Any, look: Look) -> Any:
    """CANN's own options: two dictionaries of text."""
    if not isinstance(value, dict):
        return look.wrong(TypeError, is_a(value), "dict")
    for level, options in value.items():
        inner = look.inside(level)
        if level not in ("global", "session"):
            inner.wrong(ValueError, "ge_options has no such key", "global, session")
        elif not isinstance(options, dict):
            inner.wrong(TypeError, is_a(options), "dict")
        else:
            for key, text in options.items():
                for part in (key, text):
                    if not isinstance(part, str):
                        inner.inside(key).wrong(TypeError, is_a(part), "str")
    return value


@dataclass(frozen=True)
class Unheld:
    """A value that is checked as MindSpore checks it, and then dropped with a warning: msctx has nothing for it."""

    check: Check | None
    text: str

    def __call__(self, value: Any, look: Look) -> Any:
        before = len(look.found)
        if self.check is not None:
            self.check(value, look)
        return DROP if len(look.found) > before else look.drop(self.text)


def topo_order(value: Any, look: Look) -> Any:
    if Is(dict)(value, look) is not DROP:
        for key, order in value.items():
            Is(str)(key, look.inside(key))
            OneOf(("dfs", "bfs", "rdfs"))(order, look.inside(key))
    return value


Shown = Callable[[Any], Any]
"""msctx's form of a value → MindSpore's."""

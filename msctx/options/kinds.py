"""The value types that options share: what is accepted, and the one canonical form it takes.

Pydantic composes them (``list[Memory]``, ``dict[str, Bool]`` …) and collects every problem at once; each kind only knows its
own scalar. Pydantic's stock types are not used for scalars: ``Literal[0, 1]`` takes ``True`` even when strict, and no stock
type can offer the nearest allowed value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral
from os import PathLike, fspath
from typing import Annotated, Any

from msctx.errors import Diagnostic, Mark, Marks, nearest
from msctx.tables import in_words


class YamlWord(str):
    """A plain ``on``, ``off``, ``yes`` or ``no`` of a YAML file: a boolean in YAML 1.1, a string in YAML 1.2.

    Only a kind knows which was meant, so the loader leaves the question open.
    """

    __slots__ = ()
    TRUTH = {"on": True, "yes": True, "off": False, "no": False}

    @property
    def truth(self) -> bool:
        return self.TRUTH[self.lower()]


Keys = tuple[Any, ...]
"""The keys that lead to a value within a value."""


def dotted(path: Keys) -> str:
    """A path of keys as one name; keys of a user's dictionary may be anything."""
    return ".".join(str(key) if isinstance(key, str | int) else show(key) for key in path)


def nowhere(path: Keys) -> Mark | None:
    """The :data:`msctx.errors.Marks` of what stands in no file."""
    return None


class BadValue(ValueError):
    """What is wrong with a value, or (*at_key*) with its key.

    Args:
        suggestion: a value to write instead, or a sentence of advice; or a function that looks for one where it is told.
        path: the keys that lead to it, from the value that was checked.
    """

    def __init__(self, text: str, *, allowed: str = "", suggestion: Any = "", path: Keys = (), at_key: bool = False) -> None:
        super().__init__(text)
        self.text, self.allowed, self.suggestion, self.path, self.at_key = text, allowed, suggestion, path, at_key

    def at(self, name: Keys = (), where: str = "", marks: Marks = nowhere) -> Diagnostic:
        """The same with its place: *name* leads to the value that was checked, and *marks* are those of what is below that."""
        found = self.suggestion() if callable(self.suggestion) else self.suggestion
        is_advice = isinstance(found, str) and (not found or " " in found or self.at_key)
        hint = found if is_advice else repr(found)
        mark = marks((*self.path, "") if self.at_key else self.path)
        return Diagnostic(dotted((*name, *self.path)), self.text, where, self.allowed, hint, mark)


def refusal(value: Any, **more: Any) -> BadValue:
    """Of a value that is none of those that are allowed."""
    return BadValue(f"{show(value)} is not allowed", **more)


def show(value: Any) -> str:
    """A value as a message quotes it. Whatever a user gave must be shown: also what Python cannot print."""
    try:
        text = repr(value)
    except Exception as error:  # a __repr__ that raises; nested without end
        return f"a {type(value).__name__} that cannot be printed ({type(error).__name__})"
    return text if len(text) <= 200 else f"{text[:200]}…"


INVALID: Any = type("Invalid", (), {"__repr__": lambda self: "(unreadable)"})()
"""Stands in a file's data for what could not be read; the problem is reported already."""


def _plain(value: Any) -> Any:
    """Paths, enumerations and numbers of numpy as what they mean."""
    if isinstance(value, PathLike):
        return fspath(value)
    if isinstance(value, str):
        return value if isinstance(value, YamlWord) else str.__str__(value)
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    return value.item() if type(value).__module__ == "numpy" and not getattr(value, "shape", 1) else value


def _variants(value: Any) -> Iterator[Any]:
    """What somebody may have meant: without brackets or quotes, or with quotes; digits for letters that look like them."""
    match value:
        case [one]:
            yield one
        case str():
            yield {"true": True, "false": False}.get(value.lower(), value)
            with suppress(ValueError):
                yield float(value) if re.search("[.eE]", value) else int(value)
            yield value.translate(str.maketrans("oOlI", "0011"))
        case float() | int() if abs(value) < 2**63 and not isinstance(value, bool):
            yield from [int(value)] * (value == int(value))
            yield str(value)


class Kind:
    """A scalar type. Subclasses :meth:`read` a value and describe themselves."""

    @property
    def allowed(self) -> str:
        """The accepted values, for messages and the reference."""
        raise NotImplementedError

    def parse(self, value: Any, within: str = "") -> Any:
        """The canonical form of *value*; else :class:`BadValue`, which says what is allowed, and *within* what it stands."""
        value = _plain(value)
        try:
            return self.read(value)
        except BadValue as error:
            text = f"{within}: {error.text}" if within else error.text
            hint = partial(self.nearest, value) if error.suggestion == "" else error.suggestion
            raise BadValue(text, allowed=error.allowed or self.allowed, suggestion=hint) from None

    def read(self, value: Any) -> Any:
        """:class:`BadValue`: it is none of the values."""
        raise NotImplementedError

    def nearest(self, value: Any) -> Any:
        """A value that may have been meant; ``""``: nobody knows."""
        for other in _variants(value):
            with suppress(BadValue):
                self.read(other)
                return other
        return ""

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of what a YAML file may hold."""
        return {}

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(self.parse)

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> dict[str, Any]:
        return self.schema()


@dataclass(frozen=True)
class ValueKind(Kind):
    """One of a closed set of strings, numbers or truth values; other spellings lead to the canonical one."""

    choices: tuple[Any, ...]
    aliases: dict[Any, Any] = field(default_factory=dict, hash=False)
    meanings: dict[Any, str] = field(default_factory=dict, hash=False)
    zero_one: bool = False  # whether the numbers 1 and 0 stand for true and false

    @property
    def others(self) -> list[tuple[Any, Any]]:
        """The other spellings, each with the choice it leads to."""
        numbers = [(int(alias), choice) for alias, choice in self.aliases.items() if isinstance(alias, bool)]
        return [*self.aliases.items(), *(numbers if self.zero_one else [])]

    @property
    def allowed(self) -> str:
        other: dict[Any, list[str]] = {}
        for alias, choice in self.others:
            if (text := _spelled(alias)) != _spelled(choice):
                other.setdefault(choice, []).append(text)
        return ", ".join(f"{_spelled(c)} (also {', '.join(other[c])})" if c in other else _spelled(c) for c in self.choices)

    @property
    def takes_truth(self) -> bool:
        """Whether ``True`` and ``False`` are values."""
        return any(value is True for value in (*self.choices, *self.aliases))

    def read(self, value: Any) -> Any:
        words = [str(value), value.truth] if isinstance(value, YamlWord) else [value]
        for word in words:
            for given, choice in [*((c, c) for c in self.choices), *self.others]:
                if type(given) is type(word) and given == word:  # by type too: 1 == True, and neither is the other here
                    return choice
        raise refusal(words[0])

    def nearest(self, value: Any) -> Any:
        if (found := super().nearest(value)) != "" or not isinstance(value, str):
            return found
        spelled = {str(c).lower(): c for c in (*self.aliases, *self.choices)}
        return spelled.get(nearest(value.lower(), spelled), "")

    def schema(self) -> dict[str, Any]:
        if self.choices == (True, False):
            return {"type": "boolean"}
        meant = {choice: self.meanings.get(choice, "") for choice in self.choices}
        same = [f"the same as {choice}" + f": {meant[choice]}" * bool(meant[choice]) for _, choice in self.others]
        return {"enum": [*meant, *(other for other, _ in self.others)], "enumDescriptions": [*meant.values(), *same]}


def _spelled(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class ChoiceKind(ValueKind):
    """The values of an option with a dedicated set."""


BOOL = ValueKind((True, False))
"""0 and 1 are numbers here, not truth values."""
ON_OFF = ValueKind(("ON", "OFF"), {True: "ON", False: "OFF"}, {"ON": "switched on", "OFF": "switched off"}, zero_one=True)
FLAG = ValueKind((0, 1), {True: 1, False: 0, "ON": 1, "OFF": 0})
TEXT_FLAG = ValueKind(("0", "1"), {True: "1", False: "0", "ON": "1", "OFF": "0"}, zero_one=True)
"""As some of CANN's options have a flag."""


@dataclass(frozen=True)
class IntKind(Kind):
    """A whole number within closed limits; by default those of 64 bits."""

    minimum: int = -(2**63)
    maximum: int = 2**63 - 1
    zero: bool = True  # whether 0 is one of them

    @property
    def allowed(self) -> str:
        limits = "" if self.minimum == IntKind.minimum else f", {self.minimum} or more"
        if self.maximum != IntKind.maximum:
            limits = f" from {self.minimum} to {self.maximum}"
        return f"a whole number{limits}" + ("" if self.zero else ", not 0")

    def read(self, value: Any) -> int:
        if type(value) is not int or not self.minimum <= value <= self.maximum or (value == 0 and not self.zero):
            raise refusal(value)
        return value

    def schema(self) -> dict[str, Any]:
        limits = {"type": "integer", "minimum": self.minimum, "maximum": self.maximum}
        return limits if self.zero else {**limits, "not": {"const": 0}}


@dataclass(frozen=True)
class Form(Kind):
    """Of which a function makes the canonical form, or raises :class:`BadValue`; with its JSON Schema."""

    allowed: str = ""
    make: Callable[[Any], Any] = str
    form: dict[str, Any] = field(default_factory=dict, hash=False)

    def read(self, value: Any) -> Any:
        return self.make(value)

    def schema(self) -> dict[str, Any]:
        return dict(self.form)


def where(holds: Callable[[Any], bool]) -> Callable[[Any], Any]:
    """A function for :class:`Form` that takes the values for which something holds, as they are."""

    def read(value: Any) -> Any:
        if not holds(value):
            raise refusal(value)
        return value

    return read


SHARE = Form(
    "a number above 0 and below 1, such as 1e-5",
    where(lambda value: isinstance(value, float) and 0.0 < value < 1.0),
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
)


class Size(int):
    """A number of bytes, which prints in words; beside them the number, where they stand for another."""

    __slots__ = ()

    def __repr__(self) -> str:
        text = in_words(self)
        is_exact = "bytes" in text or _bytes_of(*text.split()) == self
        return text if is_exact else f"{text} ({int(self)} bytes)"


def _bytes_of(number: str, unit: str) -> int:
    return int(float(number) * 1024 ** ("KMGTP".index(unit[0].upper()) + 1))


@dataclass(frozen=True)
class MemoryKind(Kind):
    """An amount of memory within closed limits; the canonical form is a number of bytes.

    As in MindSpore GB means 2**30 bytes; so do GiB and G, and likewise for MB and KB.
    """

    allowed: str = 'a size such as "4GB", "512MB" or "1.5GiB" (GB = 2**30 bytes), or a number of bytes; more than zero'
    minimum: int = 1
    maximum: int = 2**63 - 1

    def read(self, value: Any) -> Size:
        text = str(value).strip() if isinstance(value, str) or type(value) is int else ""
        if not (match := _SIZE.fullmatch(text)):
            raise refusal(value)
        number, unit, plain = match.groups()
        size = int(plain) if plain else _bytes_of(number, unit)
        if self.minimum and 0 < size < _SMALL and text.isdecimal():
            hint = f"{size}{'GB' if size <= 256 else 'MB'}"
            raise BadValue(f"{text} is a number of bytes; for that few, write {size}B", suggestion=hint)
        if not self.minimum <= size <= self.maximum:
            raise refusal(value)
        return Size(size)

    def schema(self) -> dict[str, Any]:
        number = {"type": "integer", "minimum": self.minimum and max(self.minimum, _SMALL), "maximum": self.maximum}
        pattern = r"^\s*[0-9]{1,19}((\.[0-9]{1,19})?\s*[KkMmGgTt][Ii]?[Bb]?|\s*[Bb]?)\s*$"
        return {"anyOf": [number, {"type": "string", "pattern": pattern}]}


_SMALL = 4096
"""A smaller number without a unit was hardly meant as bytes."""
_SIZE = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,19})?)\s*([KMGT])i?B?|(-?[0-9]{1,19})\s*B?", re.IGNORECASE)


@dataclass(frozen=True)
class TextKind(Kind):
    """Free text: names, paths, patterns. ``comma_list`` also takes a list and joins it with *separator*."""

    allowed: str = "text"
    comma_list: bool = False
    separator: str = ","
    empty: bool = False

    def read(self, value: Any) -> str:
        if self.comma_list and isinstance(value, list | tuple) and all(type(v) in (str, int) for v in value):
            value = self.separator.join(str(v) for v in value)
        if not isinstance(value, str):
            raise refusal(value)
        if not value.strip() and not self.empty:
            raise BadValue("the text is empty")
        if re.search("[\0\ud800-\udc7f\udd00-\udfff]", value):  # \udc80 … are bytes of a path that is not UTF-8
            raise BadValue(f"{show(value)} holds a character that neither a file nor a path can hold")
        return str(value)

    def schema(self) -> dict[str, Any]:
        text: dict[str, Any] = {"type": "string"} if self.empty else {"type": "string", "pattern": r"\S"}
        if not self.comma_list:
            return text
        listed: dict[str, Any] = {"type": "array", "items": {"type": ["string", "integer"]}}
        return {"anyOf": [text, listed if self.empty else {**listed, "minItems": 1}]}


@dataclass(frozen=True)
class CheckedKind(TextKind):
    """Text of which a function makes the canonical form, or raises :class:`BadValue`."""

    check: Callable[[str], str] = str

    def read(self, value: Any) -> str:
        return self.check(super().read(value))


Bool = Annotated[bool, BOOL]
OnOff = Annotated[str, ON_OFF]
Flag = Annotated[int, FLAG]
TextFlag = Annotated[str, TEXT_FLAG]
Memory = Annotated[int, MemoryKind()]
Share = Annotated[float, SHARE]
Text = Annotated[str, TextKind()]
AnyText = Annotated[str, TextKind(empty=True)]
Path = Annotated[str, TextKind(allowed="a path")]


def MemoryBetween(allowed: str, minimum: int = 1, maximum: int = MemoryKind.maximum) -> Any:
    return Annotated[int, MemoryKind(allowed, minimum, maximum)]


def Int(minimum: int = IntKind.minimum, maximum: int = IntKind.maximum, *, zero: bool = True) -> Any:
    return Annotated[int, IntKind(minimum, maximum, zero)]


def Choice(meanings: dict[Any, str], aliases: dict[Any, Any] | None = None) -> Any:
    """A closed set of values, each with what it means: ``Choice({"O0": "speed first", "O1": "memory first"})``.

    Args:
        meanings: value → a few words.
        aliases: another spelling → the value it stands for.
    """
    return Annotated[Any, ChoiceKind(tuple(meanings), aliases or {}, meanings)]


def TextList(allowed: str, separator: str = ",") -> Any:
    """Text whose parts are joined by *separator*; a list of the parts is taken too."""
    return Annotated[str, TextKind(allowed, comma_list=True, separator=separator)]

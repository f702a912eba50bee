"""The value types that options share: what is accepted, and the one canonical form it takes.

Pydantic composes them (``list[Memory]``, ``dict[str, Bool]`` …) and collects every problem at once; each kind only knows its
own scalar. Pydantic's stock types are not used for scalars: ``Literal[0, 1]`` takes ``True`` even when strict, and no stock
type can offer the nearest allowed value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral
from os import PathLike, fspath
from typing import Annotated, Any, SupportsFloat

from msctx.errors import nearest
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


class BadValue(ValueError):
    """A value that a kind does not take; carries what a message needs.

    The suggestion is a value to write instead, or a sentence of advice.
    """

    def __init__(self, text: str, *, allowed: str = "", suggestion: Any = "") -> None:
        super().__init__(text)
        self.text, self.allowed, self.suggestion = text, allowed, suggestion

    @property
    def hint(self) -> str:
        """The suggested value as it can be written; advice as it stands."""
        is_advice = isinstance(self.suggestion, str) and (not self.suggestion or " " in self.suggestion)
        return self.suggestion if is_advice else repr(self.suggestion)


def plain(value: str) -> str:
    """A text without what a subclass (an enumeration, numpy's) makes of it when it is printed."""
    return str.__str__(value)


def show(value: Any) -> str:
    """A value as a message quotes it. Whatever a user gave must be shown: also what Python cannot print."""
    try:
        text = repr(value)
    except Exception as error:  # a __repr__ that raises; nested without end
        return f"a {type(value).__name__} that cannot be printed ({type(error).__name__})"
    return text if len(text) <= 200 else f"{text[:200]}…"


INVALID: Any = type("Invalid", (), {"__repr__": lambda self: "(unreadable)"})()
"""Stands in a file's data for what could not be read; the problem is reported already."""


class Kind:
    """A scalar type. Subclasses :meth:`read` a value and describe themselves."""

    @property
    def allowed(self) -> str:
        """The accepted values, for messages and the reference."""
        raise NotImplementedError

    def parse(self, value: Any, within: str = "") -> Any:
        """The canonical form of *value*; else :class:`BadValue`, which says what is allowed, and *within* what it stands."""
        try:
            return self.read(value)
        except BadValue as error:
            text = f"{within}: {error.text}" if within else error.text
            raise BadValue(text, allowed=error.allowed or self.allowed, suggestion=error.suggestion) from None

    def read(self, value: Any) -> Any:
        raise NotImplementedError

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
    hints: dict[str, Any] = field(default_factory=dict, hash=False)  # a word that is none of the values → what is meant

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
        if isinstance(value, str) and type(value) not in (str, YamlWord):
            value = plain(value)
        if type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"):  # numpy 2's and numpy 1's name
            value = bool(value)
        words = [str(value), value.truth] if isinstance(value, YamlWord) else [value]
        for word in words:
            for given, choice in [*((c, c) for c in self.choices), *self.others]:
                if type(given) is type(word) and given == word:  # by type too: 1 == True, and neither is the other here
                    return choice
        raise BadValue(f"{show(words[0])} is not one of the values", suggestion=self._nearest(words[0]))

    def _nearest(self, value: Any) -> Any:
        """The choice or alias whose spelling is nearest, as a value that can be written; or what to do instead."""
        if isinstance(value, str) and value.lower() in ("true", "false") and self.takes_truth:
            return "quotes make it text: write it without"
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if not isinstance(value, str | int) or (isinstance(value, int) and abs(value) > 2**63):
            return ""
        spelled = {str(c).lower(): c for c in (*self.aliases, *self.choices)} | self.hints
        return spelled.get(nearest(str(value).lower(), spelled), "")

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
        if isinstance(value, Integral) and not isinstance(value, bool):  # numpy's, too
            value = int(value)
        if type(value) is not int:
            is_quoted = isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value)
            hint: Any = f"write it without quotes: {value}" if is_quoted else ""
            if isinstance(value, float) and value.is_integer():
                hint = int(value)
            raise BadValue(f"{show(value)} is not a whole number", suggestion=hint)
        if not self.minimum <= value <= self.maximum or (value == 0 and not self.zero):
            raise BadValue(f"{show(value)} is out of range")
        return value

    def schema(self) -> dict[str, Any]:
        limits = {"type": "integer", "minimum": self.minimum, "maximum": self.maximum}
        return limits if self.zero else {**limits, "not": {"const": 0}}


@dataclass(frozen=True)
class ShareKind(Kind):
    """A number above 0 and below 1."""

    allowed: str = "a number above 0 and below 1, such as 1e-5"

    def read(self, value: Any) -> float:
        if not isinstance(value, float) and (isinstance(value, (bool, str)) or not isinstance(value, SupportsFloat)):
            is_quoted = isinstance(value, str) and re.fullmatch(r"[0-9.]+(e-?[0-9]+)?", value, re.I)
            hint = "write it without quotes" if is_quoted else ""
            raise BadValue(f"{show(value)} is not a number", suggestion=hint)
        try:
            number = float(value)
        except Exception:  # numpy's arrays, numbers beyond any float
            number = math.nan
        if not 0.0 < number < 1.0:
            raise BadValue(f"{show(value)} is out of range")
        return number

    def schema(self) -> dict[str, Any]:
        return {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}


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
    maximum: int | None = None

    def read(self, value: Any) -> Size:
        is_number = isinstance(value, Integral) and not isinstance(value, bool)
        text = str(int(value) if is_number else value).strip() if is_number or isinstance(value, str) else ""
        if not (match := _SIZE.fullmatch(text)):
            raise BadValue(f"{show(value)} is not an amount of memory", suggestion=_near_size(text))
        number, unit, plain = match.groups()
        size = int(plain) if plain else _bytes_of(number, unit)
        if self.minimum and 0 < size < _SMALL and text.isdecimal():
            hint = f"{size}{'GB' if size <= 256 else 'MB'}"
            raise BadValue(f"{text} is a number of bytes; for that few, write {size}B", suggestion=hint)
        if not self.minimum <= size <= (self.maximum or 2**63 - 1):
            raise BadValue(f"{show(value)} is out of range")
        return Size(size)

    def schema(self) -> dict[str, Any]:
        low = self.minimum and max(self.minimum, _SMALL)
        number = {"type": "integer", "minimum": low, "maximum": self.maximum or 2**63 - 1}
        pattern = r"^\s*[0-9]{1,19}((\.[0-9]{1,19})?\s*[KkMmGgTt][Ii]?[Bb]?|\s*[Bb]?)\s*$"
        return {"anyOf": [number, {"type": "string", "pattern": pattern}]}


_SMALL = 4096
"""A smaller number without a unit was hardly meant as bytes."""
_SIZE = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,19})?)\s*([KMGT])i?B?|(-?[0-9]{1,19})\s*B?", re.IGNORECASE)


def _near_size(value: str) -> str:
    """The size somebody meant who wrote a letter for a digit: ``4OGB`` → ``40GB``."""
    repaired = value.translate(str.maketrans("oOlI", "0011"))
    return repaired if _SIZE.fullmatch(repaired) and repaired != value else ""


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
        if isinstance(value, PathLike):
            value = fspath(value)
        if not isinstance(value, str):
            hint = str(value) if isinstance(value, int | float) and len(show(value)) < 40 else ""
            raise BadValue(f"{show(value)} is not text", suggestion=hint)
        if not value.strip() and not self.empty:
            raise BadValue("the text is blank" if value else "the text is empty")
        if re.search("[\0\ud800-\udc7f\udd00-\udfff]", value):  # \udc80 … are bytes of a path that is not UTF-8
            raise BadValue(f"{show(value)} holds a character that neither a file nor a path can hold")
        return plain(value)

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
Share = Annotated[float, ShareKind()]
Text = Annotated[str, TextKind()]
AnyText = Annotated[str, TextKind(empty=True)]
Path = Annotated[str, TextKind(allowed="a path")]


def MemoryBetween(allowed: str, minimum: int = 1, maximum: int | None = None) -> Any:
    return Annotated[int, MemoryKind(allowed, minimum, maximum)]


def Int(minimum: int = IntKind.minimum, maximum: int = IntKind.maximum, *, zero: bool = True) -> Any:
    return Annotated[int, IntKind(minimum, maximum, zero)]


def Choice(meanings: dict[Any, str], aliases: dict[Any, Any] | None = None, hints: dict[str, Any] | None = None) -> Any:
    """A closed set of values, each with what it means: ``Choice({"O0": "speed first", "O1": "memory first"})``.

    Args:
        meanings: value → a few words.
        aliases: another spelling → the value it stands for.
        hints: a word that is not accepted → the value that messages suggest instead.
    """
    return Annotated[Any, ChoiceKind(tuple(meanings), aliases or {}, meanings, hints=hints or {})]


def TextList(allowed: str, separator: str = ",") -> Any:
    """Text whose parts are joined by *separator*; a list of the parts is taken too."""
    return Annotated[str, TextKind(allowed, comma_list=True, separator=separator)]

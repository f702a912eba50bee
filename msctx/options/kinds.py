"""The kinds of values: what each takes, its canonical form, and what is wrong with the rest.

They compose (``ListOf(Memory)``, ``DictOf(Bool)`` …) and collect every problem at once. Types matter: ``True`` is no number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from numbers import Integral
from os import PathLike, fspath
from typing import Any

from msctx.errors import MOST, Diagnostic, Mark, Marks, nearest
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
    """A value as a message quotes it."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


INVALID: Any = type("Invalid", (), {"__repr__": lambda self: "(unreadable)"})()
"""Stands in a file's data for what could not be read; the problem is reported already."""
UNREADABLE = BadValue("")
"""What is wrong with that."""


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


# --- the kinds of scalars ---------------------------------------------------------------------------------------------


class Kind:
    """A type of values.

    Args:
        allowed: the accepted values, for messages and the reference.
        make: a value → its canonical form. :class:`BadValue`, or any ValueError: it has none.
        form: the JSON Schema of what a YAML file may hold.
        null: whether None is taken, too.
    """

    is_text = False
    """Whether a bare word of the environment or the command line is a value as it stands, ``5`` and ``true`` too."""

    def __init__(
        self, allowed: str, make: Callable[[Any], Any] = lambda value: value, form: Any = None, *, null: bool = False
    ) -> None:
        self.allowed, self.make, self.null = allowed, make, null
        self.form: dict[str, Any] = {"anyOf": [form, {"type": "null"}]} if null else form

    def parse(self, value: Any, *, within: str = "") -> Any:
        """The canonical form of *value*; else :class:`BadValue`, which says what is allowed, and *within* what it stands."""
        value = _plain(value)
        try:
            return self.make(value)
        except ValueError as error:
            bad = error if isinstance(error, BadValue) else refusal(value)
            hint = partial(self.nearest, value) if bad.suggestion == "" else bad.suggestion
            text = "None is not a value; omit the option to leave PyTorch as it is" if value is None else bad.text
            text = f"{within}: {text}" if within else text
            raise BadValue(text, allowed=bad.allowed or self.allowed, suggestion=hint) from None

    def read(self, value: Any, wrong: list[BadValue], path: Keys = (), *, at_key: bool = False) -> Any:
        """The canonical form of *value*, which stands at *path*; what is wrong with it, or with what is in it, joins *wrong*."""
        if value is INVALID:
            wrong.append(UNREADABLE)
        elif not (self.null and value is None):
            try:
                return self._read(value, wrong, path)
            except BadValue as bad:
                bad.path, bad.at_key = path, at_key
                wrong.append(bad)
        return None

    def _read(self, value: Any, wrong: list[BadValue], path: Keys) -> Any:
        return self.parse(value)

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of what a YAML file may hold."""
        return self.form

    def nearest(self, value: Any) -> Any:
        """A value that may have been meant; ``""``: nobody knows."""
        for other in _variants(value):
            with suppress(ValueError):
                self.make(other)
                return other
        return ""


class Choice(Kind):
    """One of a closed set of strings, numbers or truth values; other spellings lead to the canonical one.

    Args:
        choices: the values; a set that an option has for itself is a dictionary: value → a few words.
        aliases: the other spellings, each with the choice it leads to; or pairs of them, since True and 1 are one key.
    """

    def __init__(
        self, choices: Sequence[Any] | Mapping[Any, str], aliases: Sequence[tuple[Any, Any]] | Mapping[Any, Any] = ()
    ) -> None:
        self.choices, self.meanings = tuple(choices), choices if isinstance(choices, Mapping) else {}
        self.aliases = [*(aliases.items() if isinstance(aliases, Mapping) else aliases)]
        self.takes_truth = any(value is True for value in (*self.choices, *dict(aliases)))
        super().__init__(", ".join(map(self._spelled, self.choices)), self._choice, self._form())

    def _spelled(self, choice: Any) -> str:
        meant = (choice, *(other for other, leads in self.aliases if leads is choice))
        texts = dict.fromkeys(str(value).lower() if isinstance(value, bool) else str(value) for value in meant)
        first, *also = texts
        return f"{first} (also {', '.join(also)})" if also else first

    def _choice(self, value: Any) -> Any:
        words = [str(value), value.truth] if isinstance(value, YamlWord) else [value]
        for word in words:
            for given, choice in [*zip(self.choices, self.choices, strict=True), *self.aliases]:
                if type(given) is type(word) and given == word:  # by type too: 1 == True, and neither is the other here
                    return choice
        raise refusal(words[0])

    def nearest(self, value: Any) -> Any:
        if (found := super().nearest(value)) != "" or not isinstance(value, str):
            return found
        spelled = {str(c).lower(): c for c in (*dict(self.aliases), *self.choices)}
        return spelled.get(nearest(value.lower(), spelled), "")

    def _form(self) -> dict[str, Any]:
        if self.choices == (True, False):
            return {"type": "boolean"}
        meant = {choice: self.meanings.get(choice, "") for choice in self.choices}
        same = [f"the same as {choice}" + f": {meant[choice]}" * bool(meant[choice]) for _, choice in self.aliases]
        return {"enum": [*meant, *(other for other, _ in self.aliases)], "enumDescriptions": [*meant.values(), *same]}


class Size(int):
    """A number of bytes, which prints in words; beside them the number, where they stand for another."""

    __slots__ = ()

    def __repr__(self) -> str:
        text = in_words(self)
        is_exact = "bytes" in text or _bytes_of(*text.split()) == self
        return text if is_exact else f"{text} ({int(self)} bytes)"


def _bytes_of(number: str, unit: str) -> int:
    return int(float(number) * 1024 ** ("KMGTP".index(unit[0].upper()) + 1))


_SMALL = 4096
"""A smaller number without a unit was hardly meant as bytes."""
_SIZE = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,19})?)\s*([KMGT])i?B?|(-?[0-9]{1,19})\s*B?", re.IGNORECASE)
_SIZES = r"^\s*[0-9]{1,19}((\.[0-9]{1,19})?\s*[KkMmGgTt][Ii]?[Bb]?|\s*[Bb]?)\s*$"


class MemoryKind(Kind):
    """An amount of memory within closed limits; the canonical form is a number of bytes.

    As in MindSpore GB means 2**30 bytes; so do GiB and G, and likewise for MB and KB.
    """

    def __init__(self, allowed: str, minimum: int = 1, maximum: int = 2**63 - 1) -> None:
        self.minimum, self.maximum = minimum, maximum
        number = {"maximum": maximum, "minimum": minimum and max(minimum, _SMALL), "type": "integer"}
        super().__init__(allowed, self._size, {"anyOf": [number, {"pattern": _SIZES, "type": "string"}]})

    def _size(self, value: Any) -> Size:
        text = str(value).strip() if isinstance(value, str) or type(value) is int else ""
        if not (match := _SIZE.fullmatch(text)):
            raise refusal(value)
        number, unit, plain = match.groups()
        size = int(plain) if plain else _bytes_of(number, unit)
        if self.minimum and 0 < size < _SMALL and text.isdecimal():
            hint = f"{size}{'GB' if size < 128 else 'MB'}"
            raise BadValue(f"{text} is a number of bytes; for that few, write {size}B", suggestion=hint)
        if not self.minimum <= size <= self.maximum:
            raise refusal(value)
        return Size(size)


class TextKind(Kind):
    """Free text: names, paths, patterns.

    Args:
        separator: what joins the parts of a list, which is taken too; ``""``: none is.
        check: a function of the text, which returns its canonical form or raises :class:`BadValue`.
    """

    is_text = True

    def __init__(
        self,
        allowed: str = "text",
        separator: str = "",
        *,
        empty: bool = False,
        check: Callable[[str], str] = str,
        null: bool = False,
    ) -> None:
        text: dict[str, Any] = {"type": "string"} if empty else {"pattern": r"\S", "type": "string"}
        listed: dict[str, Any] = {"items": {"type": ["string", "integer"]}, "minItems": int(not empty), "type": "array"}
        super().__init__(allowed, self._text, {"anyOf": [text, listed]} if separator else text, null=null)
        self.separator, self._empty, self._check = separator, empty, check

    def _text(self, value: Any) -> str:
        if self.separator and isinstance(value, list | tuple) and all(type(v) in (str, int) for v in value):
            value = self.separator.join(str(v) for v in value)
        if not isinstance(value, str):
            raise refusal(value)
        if not value.strip() and not self._empty:
            raise BadValue("the text is empty")
        if re.search("[\0\ud800-\udc7f\udd00-\udfff]", value):  # \udc80 … are bytes of a path that is not UTF-8
            raise BadValue(f"{show(value)} holds a character that neither a file nor a path can hold")
        return self._check(str(value))


def where(holds: Callable[[Any], object]) -> Callable[[Any], Any]:
    """A function for :class:`Kind` that takes the values for which something holds, as they are."""

    def read(value: Any) -> Any:
        if not holds(value):
            raise refusal(value)
        return value

    return read


class Int(Kind):
    """A whole number within closed limits; by default those of 64 bits. *zero*: whether 0 is one of them."""

    def __init__(self, minimum: int | None = None, maximum: int | None = None, *, zero: bool = True) -> None:
        limits = "" if minimum is None else f", {minimum} or more" if maximum is None else f" from {minimum} to {maximum}"
        self.minimum, self.maximum = -(2**63) if minimum is None else minimum, 2**63 - 1 if maximum is None else maximum
        is_one = where(lambda value: type(value) is int and self.minimum <= value <= self.maximum and (zero or value != 0))
        form = {"maximum": self.maximum, "minimum": self.minimum, **({} if zero else {"not": {"const": 0}}), "type": "integer"}
        super().__init__(f"a whole number{limits}" + ", not 0" * (not zero), is_one, form)


def number_below(maximum: int, allowed: str, *, null: bool = False) -> Kind:
    """A number above 0."""
    is_one = where(lambda value: type(value) in (int, float) and 0 < value < maximum)
    form = {"exclusiveMaximum": maximum, "exclusiveMinimum": 0, "type": "number"}
    return Kind(allowed, lambda value: float(is_one(value)), form, null=null)


Bool = Choice((True, False))
"""0 and 1 are numbers here, not truth values."""
OnOff = Choice(("ON", "OFF"), [(True, "ON"), (False, "OFF"), (1, "ON"), (0, "OFF")])
Flag = Choice((0, 1), [(True, 1), (False, 0), ("ON", 1), ("OFF", 0)])
TextFlag = Choice(("0", "1"), [(True, "1"), (False, "0"), ("ON", "1"), ("OFF", "0"), (1, "1"), (0, "0")])
"""As some of CANN's options have a flag."""
Share = number_below(1, "a number above 0 and below 1, such as 1e-5")
Text = TextKind()
AnyText = TextKind(empty=True)
Path = TextKind("a path", check=where(lambda text: text[:1] != "{"))
Memory = MemoryKind('a size such as "4GB", "512MB" or "1.5GiB" (GB = 2**30 bytes), or a number of bytes; more than zero')


# --- dictionaries and lists -------------------------------------------------------------------------------------------


class ListOf(Kind):
    """A list of values of one kind. *split*: a text with commas is taken, too, as in a file that knows no lists."""

    def __init__(self, item: Kind, *, split: bool = False) -> None:
        super().__init__('["a", "b"]')
        self.item, self._split = item, split

    def _read(self, value: Any, wrong: list[BadValue], path: Keys) -> Any:
        if self._split and isinstance(value, str):
            value = re.split(r"\s*,\s*", value)
        if not isinstance(value, list):
            advice: Any = [value] if isinstance(value, str) and len(value) < 40 else ""
            raise BadValue(f"{show(value)} is not a list", allowed=self.allowed, suggestion=advice)
        return [self.item.read(one, wrong, (*path, number)) for number, one in enumerate(value)]


class DictOf(Kind):
    """A dictionary whose values are of one kind (``None``: anything), and its keys of another."""

    def __init__(self, value: Kind | None = None, key: Kind | None = None) -> None:
        form = ({"patternProperties": {r"\S": value.form}} if value else {}) | {"type": "object"}
        super().__init__("{key: text}", form=form)
        self._value, self._key = value, key

    def _read(self, value: Any, wrong: list[BadValue], path: Keys) -> Any:
        found = {}
        for key, one in _dictionary(value).items():
            name = self._key.read(key, wrong, (*path, key), at_key=True) if self._key else key
            found[name] = self._value.read(one, wrong, (*path, key)) if self._value else one
        return found


class Fields(Kind):
    """A dictionary with a closed set of keys, of which some are *needed*."""

    def __init__(self, fields: Mapping[str, Kind], needed: Sequence[str] = ()) -> None:
        super().__init__('{"key": value}')
        self.fields, self._needed = fields, needed

    def _read(self, value: Any, wrong: list[BadValue], path: Keys) -> Any:
        given = _dictionary(value)
        wrong += [BadValue(f"{key} is missing", path=path) for key in self._needed if key not in given]
        for key in [key for key in given if key not in self.fields]:
            allowed, hint = ", ".join(self.fields), nearest(str(key), self.fields)
            wrong.append(BadValue("unknown key", allowed=allowed, suggestion=hint, path=(*path, key), at_key=True))
        return {key: kind.read(given[key], wrong, (*path, key)) for key, kind in self.fields.items() if key in given}


def _dictionary(value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise BadValue(f"{show(value)} is not a dictionary", allowed='{"key": value}; in YAML `key: value`, each on a line')
    return value


def check(kind: Kind, value: Any, name: Keys = (), where: str = "", marks: Marks = nowhere) -> tuple[Any, list[Diagnostic]]:
    """The canonical value, or ``None`` and what is wrong; what could not be read is reported already.

    Args:
        name: the keys that lead to the value, for messages.
        where: the place, where there are no marks.
        marks: of what is within the value.
    """
    wrong: list[BadValue] = []
    found = kind.read(value, wrong)
    return None if wrong else found, [bad.at(name, where, marks) for bad in wrong[:MOST] if bad is not UNREADABLE]

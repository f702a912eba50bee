"""The types of values: pydantic checks them, and what is wrong is said with what is allowed and what may have been meant.

Pydantic composes them (``list[Memory]``, ``dict[str, Bool]`` …) and collects every problem at once. Its ``Literal`` is not used:
``Literal[0, 1]`` takes ``True`` even when strict.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from numbers import Integral
from os import PathLike, fspath
from types import GenericAlias
from typing import Annotated, Any, get_args, get_origin

from typing_extensions import Required, TypedDict

from msctx.errors import MOST, Diagnostic, Mark, Marks, nearest
from msctx.import_hooks import collected_later
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


# --- the kinds of scalars ---------------------------------------------------------------------------------------------


def _as_it_is(value: Any) -> Any:
    return value


class Kind:
    """A scalar type: it stands last in an annotation, around pydantic's own checks of that.

    Args:
        allowed: the accepted values, for messages and the reference.
        make: a value → its canonical form, which pydantic then checks. :class:`BadValue`: it has none.
        form: the JSON Schema of what a YAML file may hold, where that is another than pydantic's.
        limits: what pydantic shall also check: ``ge``, ``le``, ``gt``, ``lt``.
    """

    def __init__(self, allowed: str, make: Callable[[Any], Any] = _as_it_is, form: Any = None, **limits: Any) -> None:
        self.allowed, self.make, self.form, self.limits = allowed, make, form, limits

    def parse(self, value: Any, check: Callable[[Any], Any] = _as_it_is, *, within: str = "") -> Any:
        """The canonical form of *value*; else :class:`BadValue`, which says what is allowed, and *within* what it stands."""
        value = _plain(value)
        try:
            return check(self.make(value))
        except ValueError as error:
            bad = error if isinstance(error, BadValue) else refusal(value)
            hint = partial(self.nearest, value, check) if bad.suggestion == "" else bad.suggestion
            text = f"{within}: {bad.text}" if within else bad.text
            raise BadValue(text, allowed=bad.allowed or self.allowed, suggestion=hint) from None

    def nearest(self, value: Any, check: Callable[[Any], Any]) -> Any:
        """A value that may have been meant; ``""``: nobody knows."""
        for other in _variants(value):
            with suppress(ValueError):
                check(self.make(other))
                return other
        return ""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_wrap_validator_function(self.parse, handler(source) | self.limits)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return handler(schema) if self.form is None else dict(self.form)


class ValueKind(Kind):
    """One of a closed set of strings, numbers or truth values; other spellings lead to the canonical one.

    Args:
        aliases: the other spellings, each with the choice it leads to; pairs, since True and 1 are one key.
        meanings: choice → a few words; only a set that an option has for itself has them.
    """

    def __init__(
        self, choices: Sequence[Any], aliases: Sequence[tuple[Any, Any]] = (), meanings: Mapping[Any, str] | None = None
    ) -> None:
        self.choices, self.aliases, self.meanings = tuple(choices), aliases, meanings or {}
        self.takes_truth = any(value is True for value in (*self.choices, *dict(aliases)))
        super().__init__(", ".join(map(self._spelled, self.choices)), self._choice, self._form())

    def _spelled(self, choice: Any) -> str:
        texts = dict.fromkeys(_word(value) for value in (choice, *(other for other, leads in self.aliases if leads is choice)))
        first, *also = texts
        return f"{first} (also {', '.join(also)})" if also else first

    def _choice(self, value: Any) -> Any:
        words = [str(value), value.truth] if isinstance(value, YamlWord) else [value]
        for word in words:
            for given, choice in [*zip(self.choices, self.choices, strict=True), *self.aliases]:
                if type(given) is type(word) and given == word:  # by type too: 1 == True, and neither is the other here
                    return choice
        raise refusal(words[0])

    def nearest(self, value: Any, check: Callable[[Any], Any]) -> Any:
        if (found := super().nearest(value, check)) != "" or not isinstance(value, str):
            return found
        spelled = {str(c).lower(): c for c in (*dict(self.aliases), *self.choices)}
        return spelled.get(nearest(value.lower(), spelled), "")

    def _form(self) -> dict[str, Any]:
        if self.choices == (True, False):
            return {"type": "boolean"}
        meant = {choice: self.meanings.get(choice, "") for choice in self.choices}
        same = [f"the same as {choice}" + f": {meant[choice]}" * bool(meant[choice]) for _, choice in self.aliases]
        return {"enum": [*meant, *(other for other, _ in self.aliases)], "enumDescriptions": [*meant.values(), *same]}


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


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
        number = {"type": "integer", "minimum": minimum and max(minimum, _SMALL), "maximum": maximum}
        super().__init__(allowed, self._size, {"anyOf": [number, {"type": "string", "pattern": _SIZES}]})

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

    def __init__(
        self, allowed: str = "text", separator: str = "", *, empty: bool = False, check: Callable[[str], str] = str
    ) -> None:
        text: dict[str, Any] = {"type": "string"} if empty else {"type": "string", "pattern": r"\S"}
        listed: dict[str, Any] = {"type": "array", "items": {"type": ["string", "integer"]}, "minItems": int(not empty)}
        super().__init__(allowed, self._text, {"anyOf": [text, listed]} if separator else text)
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


def where(holds: Callable[[Any], bool]) -> Callable[[Any], Any]:
    """A function for :class:`Kind` that takes the values for which something holds, as they are."""

    def read(value: Any) -> Any:
        if not holds(value):
            raise refusal(value)
        return value

    return read


BOOL = ValueKind((True, False))
"""0 and 1 are numbers here, not truth values."""
_TRUTH = [(True, "ON"), (False, "OFF"), (1, "ON"), (0, "OFF")]
ON_OFF = ValueKind(("ON", "OFF"), _TRUTH)
FLAG = ValueKind((0, 1), [(True, 1), (False, 0), ("ON", 1), ("OFF", 0)])
TEXT_FLAG = ValueKind(("0", "1"), [(True, "1"), (False, "0"), ("ON", "1"), ("OFF", "0"), (1, "1"), (0, "0")])
"""As some of CANN's options have a flag."""

Bool = Annotated[bool, BOOL]
OnOff = Annotated[str, ON_OFF]
Flag = Annotated[int, FLAG]
TextFlag = Annotated[str, TEXT_FLAG]
Share = Annotated[float, Kind("a number above 0 and below 1, such as 1e-5", gt=0, lt=1)]
Text = Annotated[str, TextKind()]
AnyText = Annotated[str, TextKind(empty=True)]
Path = Annotated[str, TextKind("a path", check=where(lambda text: text[:1] != "{"))]


def MemoryBetween(allowed: str, minimum: int = 1, maximum: int = 2**63 - 1) -> Any:
    return Annotated[Any, MemoryKind(allowed, minimum, maximum)]


Memory = MemoryBetween('a size such as "4GB", "512MB" or "1.5GiB" (GB = 2**30 bytes), or a number of bytes; more than zero')


def whole(minimum: int | None = None, maximum: int | None = None, *, zero: bool = True) -> Kind:
    """A whole number within closed limits; by default those of 64 bits. *zero*: whether 0 is one of them."""
    limits = "" if minimum is None else f", {minimum} or more" if maximum is None else f" from {minimum} to {maximum}"
    low, high = (-(2**63) if minimum is None else minimum), (2**63 - 1 if maximum is None else maximum)
    if zero:
        return Kind(f"a whole number{limits}", ge=low, le=high)
    form = {"type": "integer", "minimum": low, "maximum": high, "not": {"const": 0}}
    return Kind(f"a whole number{limits}, not 0", where(lambda value: type(value) is int and value != 0), form, ge=low, le=high)


def Int(minimum: int | None = None, maximum: int | None = None, *, zero: bool = True) -> Any:
    return Annotated[int, whole(minimum, maximum, zero=zero)]


def Choice(meanings: dict[Any, str], aliases: dict[Any, Any] | None = None) -> Any:
    """A closed set of values, each with what it means: ``Choice({"O0": "speed first", "O1": "memory first"})``.

    Args:
        meanings: value → a few words.
        aliases: another spelling → the value it stands for.
    """
    return Annotated[Any, ValueKind([*meanings], [*(aliases or {}).items()], meanings)]


def TextList(allowed: str, separator: str = ",") -> Any:
    """Text whose parts are joined by *separator*; a list of the parts is taken too."""
    return Annotated[str, TextKind(allowed, separator)]


# --- dictionaries and lists of them -----------------------------------------------------------------------------------


@cache
def adapter(kind: Any) -> Any:
    """The validator of a type, built on first use: to build those of all options costs 150 ms."""
    with collected_later():
        from pydantic import TypeAdapter

        return TypeAdapter(kind)


def keys(fields: Mapping[str, Any], needed: Sequence[str] = ()) -> Any:
    """The type of a dictionary with a closed set of keys, of which some must stand there."""
    kind: Any = TypedDict("kind", {k: Required[v] if k in needed else v for k, v in fields.items()}, total=False)  # type: ignore
    setattr(kind, "__pydantic_config__", {"extra": "forbid"})  # noqa: B010  # mypy takes it for a type
    return kind


def each(item: Any) -> Any:
    return GenericAlias(list, item)


def named(value: Any, key: Any = str) -> Any:
    return GenericAlias(dict, (key, value))


def check(kind: Any, value: Any, name: Keys = (), where: str = "", marks: Marks = nowhere) -> tuple[Any, list[Diagnostic]]:
    """The canonical value, or ``None`` and what is wrong; what could not be read is reported already.

    Args:
        name: the keys that lead to the value, for messages.
        where: the place, where there are no marks.
        marks: of what is within the value.
    """
    match get_args(kind):
        case (_, ValueKind() | TextKind() | MemoryKind() as own):
            with suppress(BadValue):  # pydantic, whose import takes longer than a first context, would add nothing
                return own.parse(value), []
    from pydantic import ValidationError

    try:
        return adapter(kind).validate_python(value, strict=True), []
    except ValidationError as error:
        wrong = [_bad(one, kind) for one in error.errors(include_url=False)[:MOST] if one["input"] is not INVALID]
    return None, [bad.at(name, where, marks) for bad in wrong]


def _bad(error: Mapping[str, Any], kind: Any) -> BadValue:
    path = tuple(part for part in error["loc"] if part != "[key]")
    value, bad, shown = error["input"], error.get("ctx", {}).get("error"), show(error["input"])
    match error["type"]:
        case "missing":
            return BadValue(f"{path[-1]} is missing", path=path[:-1])
        case "extra_forbidden":
            known = _keys(kind, path[:-1])
            hint = nearest(str(path[-1]), known)
            return BadValue("unknown key", allowed=", ".join(known), suggestion=hint, path=path, at_key=True)
        case "list_type":
            advice: Any = [value] if isinstance(value, str) and len(value) < 40 else ""
            return BadValue(f"{shown} is not a list", allowed='["a", "b"]', suggestion=advice, path=path)
        case "dict_type" | "model_type":
            return BadValue(f"{shown} is not a dictionary", allowed='{"key": value}', path=path)
    if not isinstance(bad, BadValue):  # half of a surrogate pair as a key
        return BadValue(f"{shown} is not of the right type", path=path)
    text = "None is not a value; omit the option to leave PyTorch as it is" if value is None else bad.text
    hint = "" if value is None else bad.suggestion
    return BadValue(text, allowed=bad.allowed, suggestion=hint, path=path + bad.path, at_key="[key]" in error["loc"])


def _keys(kind: Any, path: Keys) -> list[str]:
    """The keys that a dictionary within a value may have."""
    for part in (*path, None):
        while get_origin(kind) in (Annotated, Required):
            kind = get_args(kind)[0]
        fields = getattr(kind, "__annotations__", None)
        if part is not None:
            kind = fields[part] if fields else get_args(kind)[-1]
    return list(getattr(kind, "model_fields", kind.__annotations__))

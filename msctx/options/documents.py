"""A text as plain data, every value of which knows its line and column; what a bare word means; checks against a type.

Reading never raises for the content of a document. Everything wrong becomes a problem, so that one run reports all of them.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path as File
from types import GenericAlias
from typing import Any

from typing_extensions import Required, TypedDict

from msctx.errors import LONGEST_LINE, MOST, Diagnostic, Mark, Marks, nearest
from msctx.imports import collected_later
from msctx.options.kinds import INVALID, BadValue, Keys, YamlWord, dotted, nowhere, show

Span = tuple[int, int]


def read_file(path: Any, *, pipes: bool = False) -> tuple[str, str]:
    """The text of a file, or why it cannot be read."""
    if not path:
        return "", "no file is named"
    try:
        found = File(path).expanduser()
        if not pipes and found.exists() and not (found.is_file() or found.is_dir()):
            return "", "it is a device or a pipe, which may never end"
        return found.read_text(encoding="utf-8-sig"), ""
    except UnicodeDecodeError as error:
        return "", f"it is not UTF-8 text (byte {error.start})"
    except OSError as error:
        where = ""
        with suppress(OSError):  # the current directory may be gone
            where = "" if File(path).is_absolute() else f" ({File.cwd() / path})"
        return "", f"{error.strerror}{where}"
    except (ValueError, RuntimeError) as error:  # a path that no system takes; ~ of nobody
        return "", str(error)


class Document:
    """A text as plain data, where everything in it stands, and what is wrong with it.

    Attributes:
        values, keys: path of keys → the place of its value, and of the key where it is given first.
    """

    def __init__(self, text: str, file: str) -> None:
        self.file, self.text = file, text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
        self.data: Any = {}
        self.problems: list[Diagnostic] = []
        self.values: dict[Keys, Mark] = {}
        self.keys: dict[Keys, Mark] = {}
        self._lines = [0, *(newline.end() for newline in re.finditer("\n", self.text))]

    def mark(self, path: Keys) -> Mark:
        """The place of the value at a path; with ``""`` appended, of its key; else of the nearest thing around it."""
        if path[-1:] == ("",):
            path = path[:-1]
            if path in self.keys:
                return self.keys[path]
        while path and path not in self.values:
            path = path[:-1]
        return self.values.get(path) or self.place((0, 0))

    def under(self, *prefix: Any) -> Callable[[Keys], Mark | None]:
        """:meth:`mark` for paths below *prefix*; paths may hold dotted keys that the file nests."""

        def mark(path: Keys) -> Mark | None:
            if (*prefix, *path) not in self.values and path[-1:] != ("",):
                path = tuple(part for key in path for part in str(key).split("."))
            return self.mark((*prefix, *path))

        return mark

    def place(self, span: Span) -> Mark:
        """The place of the text between two offsets."""
        start, end = span
        number = bisect_right(self._lines, start)
        first = self._lines[number - 1]
        last = self._lines[number] - 1 if number < len(self._lines) else len(self.text)
        shown = "" if last - first > LONGEST_LINE else self.text[first:last]
        return Mark(self.file, number, start - first + 1, shown, max(1, end - start) if end <= last else 1)

    def report(self, path: Keys, span: Span, text: str, *, allowed: str = "", suggestion: str = "") -> Any:
        self.problems.append(Diagnostic(dotted(path), text, "", allowed, suggestion, self.place(span)))
        return INVALID

    def put(self, into: dict[Any, Any], path: Keys, at: Span, span: Span, value: Any = None) -> bool:
        """Have a value in a dictionary: at the last key of *path*, which stands at one place, and the value at another. *value*: it,
        where it is not the text there. Returns whether it is the first of that key."""
        if path[-1] in into:
            self.report(path, at, f"is given twice; first in {self.keys[path]}")
            return False
        self.keys[path], self.values[path] = self.place(at), self.place(span)
        into[path[-1]] = self.text[slice(*span)] if value is None else value
        return True

    def texts(self, path: Keys, span: Span) -> list[str]:
        """The texts between commas, which are what stands at *path*."""
        parts = [*re.finditer(r"(?:^|,)\s*([^,]*?)\s*(?=,|$)", self.text[slice(*span)])]
        for number, part in enumerate(parts):
            self.values[(*path, number)] = self.place((span[0] + part.start(1), span[0] + part.end(1)))
        return [part[1] for part in parts]

    def lines(self) -> Iterator[Span]:
        """The offsets of every line that holds more than blanks or a comment."""
        return (line.span(1) for line in re.finditer(r"^[^\S\n]*([^\s#;](?:[^\n]*\S)?)", self.text, re.MULTILINE))

    def in_order(self) -> Document:
        """With its problems as a reader meets them."""
        self.problems.sort(key=lambda p: (p.mark.line, p.mark.column) if p.mark else (0, 0))
        return self


# --- words ------------------------------------------------------------------------------------------------------------

_WORDS = {"": None, "~": None, ".NaN": math.nan} | {
    form(word): value
    for word, value in (
        *(("null", None), ("true", True), ("false", False), (".nan", math.nan)),
        *((sign + ".inf", float(sign + "inf")) for sign in ("", "+", "-")),
    )
    for form in (str, str.title, str.upper)
}
_WHOLE = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F]+|0o[0-7]+")
_BROKEN = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_DIGITS = 4000
"""Python reads no longer numbers."""


def scalar(text: str) -> Any:
    """The value of a plain (unquoted) scalar of YAML 1.2; also how ``key=value`` on a command line is read.

    :class:`BadValue`: a number that YAML 1.1 and 1.2 read differently, or that Python does not read.
    """
    if text in _WORDS:
        return _WORDS[text]
    if text.lower() in YamlWord.TRUTH:
        return YamlWord(text)
    if re.fullmatch("[-+]?0[0-9_]+", text):
        sign, digits = text[: text[0] == "-"], text.lstrip("+-").replace("_", "").lstrip("0") or "0"
        octal = f" {sign}{int(digits, 8)} in YAML 1.1 and" if re.fullmatch("[0-7]{2,}", digits) else ""
        advice = "write the number without the leading zero, or quote it"
        raise BadValue(f"{text} is{octal} {sign}{digits} in YAML 1.2; {advice}")
    if _WHOLE.fullmatch(text):
        if len(text) > _DIGITS:
            raise BadValue("a number of thousands of digits; quote it if it is meant as text")
        return int(text.replace("_", ""), 0)
    return float(text) if _BROKEN.fullmatch(text) else text


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
            known = _keys(adapter(kind).json_schema(), path[:-1])
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


def _keys(schema: Mapping[str, Any], path: Keys) -> list[str]:
    """The keys that a dictionary within a schema may have."""
    definitions, at = schema.get("$defs", {}), schema
    for part in (*path, None):
        at = definitions[at["$ref"].rpartition("/")[2]] if "$ref" in at else at
        if isinstance(part, int):
            at = at["items"]
        elif part is not None:
            inner: Any = at.get("additionalProperties") or next(iter(at.get("patternProperties", {}).values()), {})
            at = at.get("properties", {}).get(part, inner)
    return list(at["properties"])

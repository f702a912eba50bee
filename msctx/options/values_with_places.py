"""A text as plain data, every value of which knows its line and column; what a bare word means; checks against a type.

Reading never raises for the content of a document. Everything wrong becomes a problem, so that one run reports all of them.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path as File
from typing import Any

from msctx.errors import LONGEST_LINE, Diagnostic, Mark
from msctx.options.kinds import INVALID, BadValue, Keys, YamlWord, dotted

Span = tuple[int, int]


def read_file(path: Any) -> tuple[str, str]:
    """The text of a file, or why it cannot be read."""
    if not path:
        return "", "no file is named"
    try:
        return File(path).expanduser().read_text(encoding="utf-8-sig"), ""
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
        """:meth:`mark` for paths below *prefix*."""
        return lambda path: self.mark((*prefix, *path))

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

    def within(self, path: Keys) -> dict[Any, Any]:
        """The dictionary at a path, which is made where it is missing."""
        found: dict[Any, Any] = self.data
        for key in path:
            found = found.setdefault(key, {})
        return found

    def put(self, path: Keys, at: Span, span: Span, value: Any = None) -> bool:
        """Have a value at a path; its key stands at one place, and the value at another. *value*: it, where it is not the text
        there. Returns whether it is the first of that key."""
        into = self.within(path[:-1])
        if path[-1] in into:
            self.report(path, at, f"is given twice; first in {self.keys[path]}")
            return False
        self.keys[path], self.values[path] = self.place(at), self.place(span)
        into[path[-1]] = self.text[slice(*span)] if value is None else value
        return True

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


def scalar(text: str) -> Any:
    """The value of a plain (unquoted) scalar of YAML 1.2, as on a command line; BadValue: a number that YAML 1.1 reads otherwise."""
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
        if len(text) > 4000:  # Python reads no more digits
            raise BadValue(f"{text[:20]}… is too long for a number")
        return int(text.replace("_", ""), 0)
    return float(text) if _BROKEN.fullmatch(text) else text

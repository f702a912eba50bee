"""Text documents with places: JSON and line-based files as plain data, every value of which knows its line and column.

Reading never raises for what a document holds. Everything wrong becomes a problem, so that one run reports all of them; only
after a place where JSON itself breaks off is nothing more found.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined]  # typeshed has it not
from pathlib import Path as File
from typing import Any

from msctx.errors import LONGEST_LINE, Diagnostic, Mark
from msctx.options.kinds import INVALID, show

Path = tuple[str | int, ...]
Span = tuple[int, int]

_DEPTH = 50
"""How many levels JSON may be nested."""


@dataclass(frozen=True)
class Parsed:
    """A document as plain data, where everything in it stands, and what is wrong with it.

    ``mark(path)`` gives the place of the value at a path of keys, ``mark((*path, ""))`` of the key itself; of something that
    is not there, the place of the nearest thing around it.
    """

    data: Any
    mark: Callable[[Path], Mark | None]
    problems: list[Diagnostic]


def read_file(path: str) -> tuple[str, str]:
    """The text of a file, or why it cannot be read and where a relative path was looked for."""
    if not path:
        return "", "no file is named"
    try:
        found = File(path).expanduser()
        if found.exists() and not (found.is_file() or found.is_dir()):
            return "", "it is a device or a pipe, which may never end"
        return found.read_text(encoding="utf-8-sig"), ""
    except UnicodeDecodeError as error:
        return "", f"it is not UTF-8 text (byte {error.start})"
    except OSError as error:
        where = ""
        with suppress(OSError):  # the current directory may be gone
            where = f" ({File.cwd() / path})" if not File(path).is_absolute() else ""
        return "", f"{error.strerror}{where}"
    except ValueError:
        return "", "no system takes such a path"
    except RuntimeError as error:  # ~ of nobody
        return "", str(error)


class Source:
    """A text that is being read: it keeps the places of what is found, and collects what is wrong."""

    def __init__(self, text: str, file: str) -> None:
        self.file, self.text = file, text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
        self.values: dict[Path, Span] = {}
        self.keys: dict[Path, Span] = {}
        self.problems: list[Diagnostic] = []
        self._lines = [0, *(newline.end() for newline in re.finditer("\n", self.text))]

    def place(self, start: int, end: int) -> Mark:
        """The place of what stands between two offsets."""
        number = bisect_right(self._lines, start)
        first = self._lines[number - 1]
        last = self._lines[number] - 1 if number < len(self._lines) else len(self.text)
        shown = "" if last - first > LONGEST_LINE else self.text[first:last]
        return Mark(self.file, number, start - first + 1, shown, max(1, end - start) if end <= last else 1)

    def mark(self, path: Path) -> Mark | None:
        wants_key = path[-1:] == ("",)
        path = path[:-1] if wants_key else path
        found = self.keys.get(path) if wants_key else self.values.get(path)
        while found is None and path:
            path = path[:-1]
            found = self.values.get(path)
        return self.place(*found or (0, 0))

    def report(self, path: Path, span: Span, text: str, *, allowed: str = "", suggestion: str = "") -> None:
        place = self.place(*span)
        self.problems.append(Diagnostic(dotted(path), text, allowed=allowed, suggestion=suggestion, mark=place))

    def add(self, path: Path, key: Span, value: Span | None = None) -> bool:
        """Note where a key and its value stand; one that is given twice is a problem, and the answer is ``False``."""
        if path in self.keys:
            self.report(path, key, f"is given twice; first on line {self.place(*self.keys[path]).line}")
            return False
        self.keys[path] = key
        self.values[path] = value or key
        return True

    def add_list(self, path: Path, text: str, start: int) -> list[str]:
        """What commas separate in a text that begins at an offset, each part with its place and without blanks."""
        found: list[str] = []
        for piece in text.split(","):
            at = start + len(piece) - len(piece.lstrip())
            self.values[(*path, len(found))] = at, at + len(piece.strip())
            found.append(piece.strip())
            start += len(piece) + 1
        return found

    def lines(self) -> Iterator[tuple[str, int]]:
        """Every line that holds more than blanks or a comment, and the offset at which it begins."""
        for match in re.finditer(r"\S[^\n]*", self.text):
            if match[0][0] not in "#;":
                yield match[0].rstrip(), match.start()

    def parsed(self, data: Any) -> Parsed:
        return Parsed(data, self.mark, in_order(self.problems))


def dotted(path: tuple[Any, ...]) -> str:
    """A path of keys as one name; keys of a user's dictionary may be anything."""
    return ".".join(str(key) if isinstance(key, str | int) else show(key) for key in path)


def in_order(problems: list[Diagnostic]) -> list[Diagnostic]:
    """Problems as a reader meets them."""
    return sorted(problems, key=lambda p: (p.mark.line, p.mark.column) if p.mark else (0, 0))


# --- JSON -------------------------------------------------------------------------------------------------------------

_BLANK = re.compile(r"[ \t\n]*")
_WORD = re.compile(r"[\w.+-]+")
_PYTHON = {"True": "true", "False": "false", "None": "null"}
_STRING_OR_COMMENT = re.compile(r'"(?:[^"\\\n]|\\[^\n])*"|//[^\n]*|#[^\n]*|/\*.*?\*/', re.DOTALL)


def parse_json(text: str, file: str, *, comments: bool = False) -> Parsed:
    """Read JSON; where it is not JSON, the data is an empty dictionary.

    Args:
        comments: allow ``// …``, ``/* … */`` and ``# …``, which JSON itself does not have.
    """
    source = Source(text, file)
    try:
        data = _Json(source, comments).read()
    except _NotJson as error:
        at = min(error.at, len(source.text.rstrip()))  # not the empty line after the last one
        source.report((), (at, at + error.width), f"this is not JSON: {error.text}", suggestion=error.suggestion)
        data = {}
    return source.parsed(data)


class _NotJson(Exception):
    def __init__(self, at: int, text: str, suggestion: str = "", width: int = 1) -> None:
        super().__init__(text)
        self.at, self.text, self.suggestion, self.width = at, text, suggestion, width


class _Json:
    """Reads JSON by its grammar: ``json`` alone reports neither where a value stands nor that a key is given twice."""

    def __init__(self, source: Source, comments: bool) -> None:
        self.source, self.comments = source, comments
        self.text = _STRING_OR_COMMENT.sub(_blanked, source.text) if comments else source.text

    def read(self) -> Any:
        at = self._skip(0)
        if at == len(self.text):
            raise _NotJson(at, "there is nothing in it")
        data, at = self._value(at, ())
        if (at := self._skip(at)) < len(self.text):
            raise self._unexpected(at, "nothing may follow the value")
        return data

    def _skip(self, at: int) -> int:
        blank = _BLANK.match(self.text, at)
        return blank.end() if blank else at

    def _is(self, at: int, sign: str) -> bool:
        return self.text[at : at + 1] == sign

    def _value(self, at: int, path: Path) -> tuple[Any, int]:
        if len(path) > _DEPTH:
            raise _NotJson(at, f"nested more than {_DEPTH} levels deep")
        read = {"{": self._object, "[": self._list, '"': self._text}.get(self.text[at : at + 1], self._word)
        value, end = read(at, path)
        self.source.values.setdefault(path, (at, end))
        return value, end

    def _object(self, at: int, path: Path) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}

        def pair(at: int) -> int:
            if not self._is(at, '"'):
                raise self._unexpected(at, 'a key in "double quotes" is missing')
            key, end = self._text(at, path)
            if self.source.add((*path, key), (at, end)):
                del self.source.values[(*path, key)]  # its value follows
            if not self._is(colon := self._skip(end), ":"):
                raise self._unexpected(colon, "a colon is missing after the key")
            value, end = self._value(self._skip(colon + 1), (*path, key))
            found.setdefault(key, value)
            return end

        return found, self._items(at, "}", pair)

    def _list(self, at: int, path: Path) -> tuple[list[Any], int]:
        found: list[Any] = []

        def item(at: int) -> int:
            value, end = self._value(at, (*path, len(found)))
            found.append(value)
            return end

        return found, self._items(at, "]", item)

    def _items(self, at: int, closing: str, read: Callable[[int], int]) -> int:
        """Read what stands between brackets; returns the offset behind them."""
        at = self._skip(at + 1)
        while not self._is(at, closing):
            at = self._skip(read(at))
            if self._is(at, ","):
                comma, at = at, self._skip(at + 1)
                if self._is(at, closing):
                    raise _NotJson(comma, f"no comma may stand before {closing}", "remove the comma")
            elif not self._is(at, closing):
                raise self._unexpected(at, f"a comma or {closing} is missing")
        return at + 1

    def _text(self, at: int, path: Path) -> tuple[str, int]:
        try:
            text, end = scanstring(self.text, at + 1, True)
        except json.JSONDecodeError as error:
            what = error.msg.removesuffix(" at").removesuffix(" starting").lower()
            raise _NotJson(error.pos, what) from None
        if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
            self.source.report(path, (at, end), "half of a surrogate pair is not a character")
            text = text.encode(errors="replace").decode()
        return text, end

    def _word(self, at: int, path: Path) -> tuple[Any, int]:
        if not (match := _WORD.match(self.text, at)):
            raise self._unexpected(at, "a value is missing")
        word, end = match[0], match.end()
        try:
            value = json.loads(word, parse_constant=_refuse)
        except json.JSONDecodeError:
            shown = word if len(word) < 40 else f"{word[:40]}…"
            quoted = _PYTHON.get(word) or (f'"{word}"' if len(word) < 40 else "")
            raise _NotJson(at, f"{shown} is neither a number nor quoted text", quoted, end - at) from None
        except ValueError:  # Python refuses to read numbers of thousands of digits
            value = math.inf
        if isinstance(value, float) and math.isinf(value):
            self.source.report(path, (at, end), "the number is too large")
            value = INVALID
        return value, end

    def _unexpected(self, at: int, text: str) -> _NotJson:
        sign = self.text[at : at + 1]
        if sign == "'":
            return _NotJson(at, text, "JSON knows double quotes only")
        if sign and sign in "/#":
            hint = "/* is never closed" if self.comments else "JSON has no comments"
            return _NotJson(at, text, hint)
        return _NotJson(at, text)


def _refuse(word: str) -> Any:
    """NaN and the infinities, which Python would read, are not JSON."""
    raise json.JSONDecodeError("no number", word, 0)


def _blanked(match: re.Match[str]) -> str:
    """A comment as blanks, so that all else keeps its line and column; a string as it is."""
    return match[0] if match[0][0] == '"' else re.sub(r"[^\n]", " ", match[0])


# --- lines ------------------------------------------------------------------------------------------------------------


def parse_ini(
    text: str, file: str, *, sections: tuple[str, ...] = (), flat: bool = False, lists: Container[str] = ()
) -> Parsed:
    """Read ``key=value`` lines under ``[section]`` headings, as ``{section: {key: text}}``; # and ; begin comment lines.

    Args:
        sections: those that the data has in any case, the first of them for lines before the first heading; without any such
            a line is a problem.
        flat: there are no sections: ``{key: text}``.
        lists: keys whose value is a list of texts, separated by commas.
    """
    source = Source(text, file)
    data: dict[str, Any] = {name: {} for name in sections}
    section: tuple[str, ...] | None = () if flat else sections[:1] or None
    for line, start in source.lines():
        end = start + len(line)
        if line[0] == "[" and not flat:
            section = (line[1:].removesuffix("]").strip(),)
            if line[-1] != "]":
                source.report(section, (start, end), "the heading has no closing ]", suggestion=f"[{section[0]}]")
            source.keys.setdefault(section, (start, end))
            source.values.setdefault(section, (start, end))
            data.setdefault(section[0], {})
            continue
        name, sign, value = line.partition("=")
        key = name.rstrip()
        path, span = (*(section or ()), key), (start, start + len(key))
        if not sign or not key:
            source.report(path[:-1], (start, end), f"{show(line)} is not key=value", allowed="key=value, one to a line")
        elif section is None:
            source.report(path, span, "stands before the first [section]")
        elif source.add(path, span, (end - len(value.lstrip()), end)):
            under = data[section[0]] if section else data
            under[key] = source.add_list(path, value, end - len(value)) if key in lists else value.strip()
    return source.parsed(data)


_OF_TYPE = re.compile(r"optype\s*::\s*([^:]*[^:\s])\s*:", re.IGNORECASE)
_OF_NAME = re.compile(r"(?!optype\s*::)(.*?\S)\s*::", re.IGNORECASE)


def parse_dtypes(text: str, file: str) -> Parsed:
    """Read the dtypes of operators, one operator to a line: ``{ByOpType or ByNodeName: {name: {label: [dtypes]}}}``."""
    source = Source(text, file)
    data: dict[str, Any] = {"ByOpType": {}, "ByNodeName": {}}
    allowed = "name::InputDtype:float16,…,OutputDtype:float16,… or OpType::Type:InputDtype:…,OutputDtype:…"
    for line, start in source.lines():
        section, end = "ByOpType" if (head := _OF_TYPE.match(line)) else "ByNodeName", start + len(line)
        if not (head := head or _OF_NAME.match(line)):
            source.report((), (start, end), "the line does not begin with name:: or OpType::Type:", allowed=allowed)
            continue
        path, rest, at = (section, head[1]), line[head.end() :], start + head.end()
        if not source.add(path, (start + head.start(1), start + head.end(1)), (at, end)):
            continue
        labels = list(re.finditer(r"([^\s,:]*)\s*:", rest))
        if not labels or rest[: labels[0].start()].strip():
            source.report(path, (at, end), "neither InputDtype: nor OutputDtype: follows", allowed=allowed)
            continue
        found = data[section].setdefault(head[1], {})
        for label, following in zip(labels, [*labels[1:], None], strict=True):
            listed = rest[label.end() : following.start() if following else None].rstrip()
            listed = listed.removesuffix(",") if following else listed  # the comma before the next label
            span = at + label.end(), at + label.end() + len(listed)
            if source.add((*path, label[1]), (at + label.start(), at + label.end(1)), span):
                found[label[1]] = source.add_list((*path, label[1]), listed, span[0])
    return source.parsed(data)


def parse_flags(text: str, file: str) -> Parsed:
    """Read ``--name=value --name …``; ``--path=file.json`` reads further flags from a file of texts. A bare flag is ``True``."""
    source = Source(text, file)
    data: dict[str, Any] = {}
    files: dict[str, Parsed] = {}
    for token in re.finditer(r"\S+", source.text):
        (start, end), (name, sign, value) = token.span(), token[0].removeprefix("--").partition("=")
        place = (end - len(value), end) if sign else (start, end)
        if not token[0].startswith("--") or not name or "=" in value:
            hint = f"--{token[0].lstrip('-')}" if name.strip("-") and "=" not in value else ""
            what = f"{show(token[0])} is not a flag"
            source.report((), (start, end), what, allowed="--name or --name=value", suggestion=hint)
        elif name == "path":
            content, why_not = read_file(value)
            parsed = parse_json(content, value)
            if why_not:
                source.report((name,), place, f"{show(value)} cannot be read: {why_not}")
            elif not isinstance(parsed.data, dict):
                source.report((name,), place, "the file holds no dictionary of flags")
            else:
                twice = [key for key in parsed.data if key in data or key == "path"]
                again = [Diagnostic(key, "is given twice", mark=parsed.mark((key, ""))) for key in twice]
                kinds = [
                    Diagnostic(key, f"{show(value)} is not text", allowed="text in quotes", mark=parsed.mark((key,)))
                    for key, value in parsed.data.items()
                    if not isinstance(value, str)
                ]
                source.problems += [*parsed.problems, *again, *kinds]
                data |= parsed.data
                files |= dict.fromkeys(parsed.data, parsed)
        elif name in files:
            first = files[name].mark((name, ""))
            source.report((name,), (start, start + 2 + len(name)), f"is given twice; first in {first}")
        elif source.add((name,), (start, start + 2 + len(name)), place):
            data[name] = value if sign else True
    return Parsed(data, lambda path: (files.get(str(path[0]), source) if path else source).mark(path), source.problems)

"""Text documents as plain data, every value of which knows its line and column: JSON and line-based files.

Reading never raises for the content of a document. Everything wrong becomes a problem, so that one run reports all of them.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from pathlib import Path as File
from typing import Any

from msctx.errors import LONGEST_LINE, Diagnostic, Mark
from msctx.options.kinds import YamlWord, show

Path = tuple[Any, ...]
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
    except ValueError:
        return "", "no system takes such a path"
    except RuntimeError as error:  # ~ of nobody
        return "", str(error)


def dotted(path: Path) -> str:
    """A path of keys as one name; keys of a user's dictionary may be anything."""
    return ".".join(str(key) if isinstance(key, str | int) else show(key) for key in path)


class Document:
    """A text as plain data, where everything in it stands, and what is wrong with it.

    Attributes:
        values, keys: path of keys → the offsets at which its value, or its last key, begins and ends.
        locate: finds these when the first is wanted.
        files: key → another document that holds it.
    """

    def __init__(self, text: str, file: str, data: Any = None) -> None:
        self.file, self.text = file, text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
        self.data: Any = {} if data is None else data
        self.problems: list[Diagnostic] = []
        self.values: dict[Path, Span] = {}
        self.keys: dict[Path, Span] = {}
        self.files: dict[str, Document] = {}
        self.locate: Callable[[], None] | None = None
        self._lines = [0, *(newline.end() for newline in re.finditer("\n", self.text))]

    def mark(self, path: Path) -> Mark | None:
        """The place of the value at a path; with ``""`` appended, of its key; else of the nearest thing around it."""
        if path and path[0] in self.files:
            return self.files[path[0]].mark(path)
        if self.locate:
            locate, self.locate = self.locate, None
            locate()
        span = None
        if path[-1:] == ("",):
            path = path[:-1]
            span = self.keys.get(path)
        while path and span is None and path not in self.values:
            path = path[:-1]
        return self.place(span or self.values.get(path, (0, 0)))

    def under(self, *prefix: Any) -> Callable[[Path], Mark | None]:
        """:meth:`mark` for paths below *prefix*; paths may hold dotted keys that the file nests."""

        def mark(path: Path) -> Mark | None:
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

    def report(self, path: Path, span: Span, text: str, *, allowed: str = "", suggestion: str = "") -> None:
        self.problems.append(Diagnostic(dotted(path), text, "", allowed, suggestion, self.place(span)))

    def add(self, path: Path, key: Span, value: Span) -> bool:
        """Note where a key and its value stand; the answer is ``False`` for a key that is given twice, a problem."""
        if path in self.keys:
            self.report(path, key, f"is given twice; first on line {self.place(self.keys[path]).line}")
            return False
        self.keys[path], self.values[path] = key, value
        return True

    def add_list(self, path: Path, text: str, start: int) -> list[str]:
        """The parts, without blanks, that commas separate in a text that begins at an offset; each has its place."""
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

    def in_order(self) -> Document:
        """With its problems as a reader meets them."""
        self.problems.sort(key=lambda p: (p.mark.line, p.mark.column) if p.mark else (0, 0))
        return self


# --- words ------------------------------------------------------------------------------------------------------------

_WORDS = {"": None, "~": None} | {
    form(word): value
    for word, value in (("null", None), ("true", True), ("false", False))
    for form in (str, str.title, str.upper)
}
_NUMBER = re.compile(
    r"(?P<whole>[-+]?(?:0|[1-9][0-9_]*))|(?P<leading_zero>[-+]?0[0-9_]+)|(?P<based>0x[0-9a-fA-F]+|0o[0-7]+)|"
    r"(?P<broken>[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?)|(?P<special>(?i:[-+]?\.inf|\.nan))"
)
_DIGITS = 4000
"""Python reads no longer numbers."""


class AmbiguousNumber(ValueError):
    """A number that YAML 1.1 and 1.2 read differently, or that Python does not read."""


def scalar(text: str) -> Any:
    """The value of a plain (unquoted) scalar of YAML 1.2; also how ``key=value`` on a command line is read."""
    if text in _WORDS:
        return _WORDS[text]
    if text.lower() in YamlWord.TRUTH:
        return YamlWord(text)
    number = _NUMBER.fullmatch(text)
    kind = number.lastgroup if number else ""
    if kind in ("whole", "based") and len(text) > _DIGITS:
        raise AmbiguousNumber("a number of thousands of digits; quote it if it is meant as text")
    match kind:
        case "leading_zero":
            sign, digits = text[: text[0] == "-"], text.lstrip("+-").replace("_", "").lstrip("0") or "0"
            octal = f" {sign}{int(digits, 8)} in YAML 1.1 and" if re.fullmatch("[0-7]+", digits) else ""
            advice = "write the number without the leading zero, or quote it"
            raise AmbiguousNumber(f"{text} is{octal} {sign}{digits} in YAML 1.2; {advice}")
        case "whole":
            return int(text.replace("_", ""))
        case "based":
            return int(text, 0)
        case "broken":
            return float(text)
        case "special":
            return float(text.replace(".", ""))
    return text


# --- JSON -------------------------------------------------------------------------------------------------------------

_NOT_PLAIN = re.compile(r"\\u[0-9a-fA-F]{4}|\\.|[^\x20-\x7e\n]")
_STRING_OR_COMMENT = re.compile(r'"(?:[^"\\\n]|\\[^\n])*"|//[^\n]*|#[^\n]*|/\*.*?\*/', re.DOTALL)


def parse_json(text: str, file: str, *, comments: bool = False) -> Document:
    """Read JSON; the data of anything else is an empty dictionary.

    Args:
        comments: allow ``// …``, ``/* … */`` and ``# …``, which JSON itself does not have.
    """
    document = Document(text, file)
    text = _STRING_OR_COMMENT.sub(_without_comment, document.text) if comments else document.text
    twice = False

    def collected(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal twice
        found = dict(pairs)
        if len(found) < len(pairs):
            twice, found = True, dict(reversed(pairs))  # the first counts
        return found

    try:
        document.data = json.loads(text, object_pairs_hook=collected, parse_constant=_refuse, parse_float=_finite)
        json.dumps(document.data, ensure_ascii=False).encode()  # half of a surrogate pair is not a character
        document.locate = (lambda: _locate(document, text)) if document.data else None
    except json.JSONDecodeError as error:
        at = min(error.pos, len(document.text.rstrip()))  # not the empty line after the last one
        document.report((), (at, at + 1), f"this is not JSON: {error.msg}")
    except (ValueError, RecursionError) as error:
        document.data = {}
        document.report((), (0, 1), f"this is not JSON: {error}")
    if twice:
        document.mark(())
    return document.in_order()


def _refuse(word: str) -> Any:
    """NaN and the infinities, which Python would read, are not JSON."""
    raise ValueError(f"{word} is not a number")


def _finite(text: str) -> float:
    if math.isinf(found := float(text)):
        raise ValueError(f"{text} is too large a number")
    return found


def _locate(document: Document, text: str) -> None:
    """Places by PyYAML: JSON is YAML, but for some characters inside of strings."""
    import yaml

    def note(node: Any, path: Path) -> None:
        document.values.setdefault(path, (node.start_mark.index, node.end_mark.index))
        for number, item in enumerate(node.value if node.id != "scalar" else ()):
            if node.id == "sequence":
                note(item, (*path, number))
                continue
            key, value = ((part.start_mark.index, part.end_mark.index) for part in item)
            inside = (*path, json.loads(document.text[slice(*key)]))
            if document.add(inside, key, value):
                note(item[1], inside)

    with suppress(yaml.YAMLError):  # it takes no keys of more than 1,024 characters
        plain = _NOT_PLAIN.sub(lambda match: " " if match[0] == "\t" else "_" * len(match[0]), text)
        note(yaml.compose(plain, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)), ())


def _without_comment(match: re.Match[str]) -> str:
    """A comment as blanks, so that all else keeps its line and column; a string as it is."""
    return match[0] if match[0][0] == '"' else re.sub(r"[^\n]", " ", match[0])


# --- lines ------------------------------------------------------------------------------------------------------------


def parse_ini(
    text: str, file: str, *, sections: tuple[str, ...] = (), flat: bool = False, lists: Container[str] = (), sign: str = "="
) -> Document:
    """Read ``key=value`` lines under ``[section]`` headings, as ``{section: {key: text}}``; # and ; begin comment lines.

    Args:
        sections: those that the data has in any case; the first of them also has the lines before the first heading.
        flat: there are no sections: ``{key: text}``.
        lists: keys whose value is a list of texts, separated by commas.
    """
    document = Document(text, file, {name: {} for name in sections})
    path: Path | None = () if flat else sections[:1] or None
    for line, start in document.lines():
        end = start + len(line)
        if line[0] == "[" and not flat:
            path = (line[1:].removesuffix("]").strip(),)
            if line[-1] != "]":
                document.report(path, (start, end), "the heading has no closing ]", suggestion=f"[{path[0]}]")
            document.keys.setdefault(path, (start, end))
            document.values.setdefault(path, (start, end))
            document.data.setdefault(path[0], {})
            continue
        name, found, value = line.partition(sign)
        key = name.rstrip()
        inside, span = (*(path or ()), key), (start, start + len(key))
        if not found or not key:
            what = f"key{sign}value"
            document.report(path or (), (start, end), f"{show(line)} is not {what}", allowed=f"{what}, one to a line")
        elif path is None:
            document.report(inside, span, "stands before the first [section]")
        elif document.add(inside, span, (end - len(value.lstrip()), end)):
            data = document.data[path[0]] if path else document.data
            data[key] = document.add_list(inside, value, end - len(value)) if key in lists else value.strip()
    return document.in_order()


_OPERATOR = re.compile(r"optype\s*::\s*([^:]*[^:\s])\s*:|(?!optype\s*::)(.*?\S)\s*::", re.IGNORECASE)
_LABEL = re.compile(r"([^\s,:]*)\s*:([^:]*?)\s*(?=,[^,:]*:|$)")
"""A label and its list; a comma may stand before the next label."""


def parse_dtypes(text: str, file: str) -> Document:
    """Read the dtypes of operators, one operator to a line: ``{ByOpType or ByNodeName: {name: {label: [dtypes]}}}``."""
    document = Document(text, file, {"ByOpType": {}, "ByNodeName": {}})
    allowed = "name::InputDtype:float16,…,OutputDtype:float16,… or OpType::Type:InputDtype:…,OutputDtype:…"
    for line, start in document.lines():
        span = start, start + len(line)
        if not (head := _OPERATOR.match(line)):
            document.report((), span, "the line does not begin with name:: or OpType::Type:", allowed=allowed)
            continue
        section, group = ("ByOpType", 1) if head[1] else ("ByNodeName", 2)
        path, rest = (section, head[group]), (start + head.end(), span[1])
        if not document.add(path, (start + head.start(group), start + head.end(group)), rest):
            continue
        labels = list(_LABEL.finditer(line, head.end()))
        if not labels or line[head.end() : labels[0].start()].strip():
            document.report(path, rest, "neither InputDtype: nor OutputDtype: follows", allowed=allowed)
            continue
        found = document.data[section].setdefault(head[group], {})
        for label in labels:
            key, value = ((start + label.start(n), start + label.end(n)) for n in (1, 2))
            if document.add((*path, label[1]), key, value):
                found[label[1]] = document.add_list((*path, label[1]), label[2], value[0])
    return document.in_order()


def parse_switches(text: str, file: str) -> Document:
    """Read CANN's switches of passes: as JSON, or in its older form, one ``Pass:on`` or ``Pass:off`` to a line."""
    if text.lstrip("\ufeff \t\r\n").startswith("{"):
        return parse_json(text, file)
    document = parse_ini(text, file, sections=("GraphFusion",), sign=":")
    document.data = {"Switch": document.data}
    document.keys, document.values = (
        {("Switch", *path): s for path, s in found.items()} for found in (document.keys, document.values)
    )
    return document


def parse_flags(text: str, file: str) -> Document:
    """Read ``--name=value --name …``; ``--path=file.json`` reads further flags from a file of texts. A bare flag is ``True``."""
    document = Document(text, file)
    for token in re.finditer(r"\S+", document.text):
        (start, end), (name, sign, value) = token.span(), token[0].removeprefix("--").partition("=")
        key, place = (start, start + 2 + len(name)), (end - len(value) if sign else start, end)
        if not token[0].startswith("--") or not name or "=" in value:
            hint = f"--{token[0].lstrip('-')}" if name.strip("-") and "=" not in value else ""
            what = f"{show(token[0])} is not a flag"
            document.report((), (start, end), what, allowed="--name or --name=value", suggestion=hint)
        elif name == "path":
            content, why_not = read_file(value)
            inner = parse_json(content, value)
            if why_not or not isinstance(inner.data, dict):
                why = f"{show(value)} cannot be read: {why_not}" if why_not else "the file holds no dictionary of flags"
                document.report((name,), place, why)
                continue
            for flag, found in inner.data.items():
                if flag in document.data or flag == "path":
                    inner.problems.append(Diagnostic(flag, "is given twice", mark=inner.mark((flag, ""))))
                if not isinstance(found, str):
                    what = f"{show(found)} is not text"
                    inner.problems.append(Diagnostic(flag, what, allowed="text in quotes", mark=inner.mark((flag,))))
            document.problems += inner.problems
            document.data |= inner.data
            document.files |= dict.fromkeys(inner.data, inner)
        elif name in document.files:
            document.report((name,), key, f"is given twice; first in {document.mark((name, ''))}")
        elif document.add((name,), key, place):
            document.data[name] = value if sign else True
    return document

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
        values, keys: path of keys → the place of its value, and of the key where it is given first.
    """

    def __init__(self, text: str, file: str) -> None:
        self.file, self.text = file, text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
        self.data: Any = {}
        self.problems: list[Diagnostic] = []
        self.values: dict[Path, Mark] = {}
        self.keys: dict[Path, Mark] = {}
        self._lines = [0, *(newline.end() for newline in re.finditer("\n", self.text))]

    def mark(self, path: Path) -> Mark:
        """The place of the value at a path; with ``""`` appended, of its key; else of the nearest thing around it."""
        if path[-1:] == ("",):
            path = path[:-1]
            if path in self.keys:
                return self.keys[path]
        while path and path not in self.values:
            path = path[:-1]
        return self.values.get(path) or self.place((0, 0))

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
            self.report(path, key, f"is given twice; first in {self.keys[path]}")
            return False
        self.keys[path], self.values[path] = self.place(key), self.place(value)
        return True

    def put(self, path: Path, found: re.Match[str], key: str, value: str, *, listed: bool = False) -> None:
        """Read a key and its value, two groups of a match; *listed*: the value is a list, separated by commas."""
        path = (*path, found[key])
        if self.add(path, found.span(key), found.span(value)):
            self.dictionary(path[:-1])[found[key]] = self._listed(path, *found.span(value)) if listed else found[value]

    def dictionary(self, path: Path) -> dict[str, Any]:
        """The one at a path, made where there is none."""
        data: dict[str, Any] = self.data
        for key in path:
            data = data.setdefault(key, {})
        return data

    def _listed(self, path: Path, start: int, end: int) -> list[str]:
        found: list[str] = []
        for part in self.text[start:end].split(","):
            at = start + len(part) - len(part.lstrip())
            self.values[(*path, len(found))] = self.place((at, at + len(part.strip())))
            found.append(part.strip())
            start += len(part) + 1
        return found

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


class AmbiguousNumber(ValueError):
    """A number that YAML 1.1 and 1.2 read differently, or that Python does not read."""


def scalar(text: str) -> Any:
    """The value of a plain (unquoted) scalar of YAML 1.2; also how ``key=value`` on a command line is read."""
    if text in _WORDS:
        return _WORDS[text]
    if text.lower() in YamlWord.TRUTH:
        return YamlWord(text)
    if re.fullmatch("[-+]?0[0-9_]+", text):
        sign, digits = text[: text[0] == "-"], text.lstrip("+-").replace("_", "").lstrip("0") or "0"
        octal = f" {sign}{int(digits, 8)} in YAML 1.1 and" if re.fullmatch("[0-7]+", digits) else ""
        advice = "write the number without the leading zero, or quote it"
        raise AmbiguousNumber(f"{text} is{octal} {sign}{digits} in YAML 1.2; {advice}")
    if _WHOLE.fullmatch(text):
        if len(text) > _DIGITS:
            raise AmbiguousNumber("a number of thousands of digits; quote it if it is meant as text")
        return int(text.replace("_", ""), 0)
    return float(text) if _BROKEN.fullmatch(text) else text


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
    try:
        data = json.loads(text, object_pairs_hook=_first_of_each, parse_constant=_refuse, parse_float=_finite)
        json.dumps(data, ensure_ascii=False).encode()  # half of a surrogate pair is not a character
        document.data = data
        _locate(document, text)
    except json.JSONDecodeError as error:
        at = min(error.pos, len(document.text.rstrip()))  # not the empty line after the last one
        document.report((), (at, at + 1), f"this is not JSON: {error.msg}")
    except (ValueError, RecursionError) as error:
        document.data = {}
        document.report((), (0, 1), f"this is not JSON: {error}")
    return document.in_order()


def _first_of_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return dict(reversed(pairs)) if len(dict(pairs)) < len(pairs) else dict(pairs)


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

    def span(node: Any) -> Span:
        return node.start_mark.index, node.end_mark.index

    def note(node: Any, path: Path) -> None:
        document.values.setdefault(path, document.place(span(node)))
        if node.id == "sequence":
            for number, item in enumerate(node.value):
                note(item, (*path, number))
        for key, value in node.value if node.id == "mapping" else ():
            inside = (*path, json.loads(document.text[slice(*span(key))]))
            if document.add(inside, span(key), span(value)):
                note(value, inside)

    with suppress(yaml.YAMLError):  # it takes no keys of more than 1,024 characters
        plain = _NOT_PLAIN.sub(lambda match: " " if match[0] == "\t" else "_" * len(match[0]), text)
        note(yaml.compose(plain, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)), ())


def _without_comment(match: re.Match[str]) -> str:
    """A comment as blanks, so that all else keeps its line and column; a string as it is."""
    return match[0] if match[0][0] == '"' else re.sub(r"[^\n]", " ", match[0])


# --- lines ------------------------------------------------------------------------------------------------------------


def parse_ini(
    text: str,
    file: str,
    *,
    sections: tuple[str, ...] = (),
    inside: Path | None = None,
    lists: Container[str] = (),
    sign: str = "=",
) -> Document:
    """Read ``key=value`` lines under ``[section]`` headings, as ``{section: {key: text}}``; # and ; begin comment lines.

    Args:
        sections: those that the data has in any case.
        inside: the dictionary of the lines before the first heading; that of a section stands beside it; (): there are no sections.
        lists: keys whose value is a list of texts, separated by commas.
    """
    document = Document(text, file)
    path, what = inside, f"key{sign}value"
    pair = re.compile(rf"(?P<key>[^{sign}]*[^{sign}\s])\s*{sign}\s*(?P<value>.*)")
    for section in sections:
        document.dictionary((*(inside or ("",))[:-1], section))
    for span in document.lines():
        line = document.text[slice(*span)]
        if heading := re.fullmatch(r"\[\s*(.*?)\s*\]", line) if path != () else None:
            path = (*(path or ("",))[:-1], heading[1])
            document.keys.setdefault(path, document.place(span))
            document.values.setdefault(path, document.place(span))
            document.dictionary(path)
        elif not (found := pair.fullmatch(document.text, *span)):
            allowed = f"{what}, one to a line" + ", or [section]" * (path != ())
            document.report(path or (), span, f"{show(line)} is not {what}", allowed=allowed)
        elif path is None:
            document.report((found["key"],), span, "stands before the first [section]")
        else:
            document.put(path, found, "key", "value", listed=found["key"] in lists)
    return document.in_order()


_OPERATOR = re.compile(r"optype\s*::\s*(?P<ByOpType>[^:]*[^:\s])\s*:|(?!optype\s*::)(?P<ByNodeName>.*?\S)\s*::", re.IGNORECASE)
_LABEL = re.compile(r"(?P<key>[^\s,:]*)\s*:(?P<value>[^:]*?)\s*(?=,[^,:]*:|$)")
"""A label and its list; a comma may stand before the next label."""


def parse_dtypes(text: str, file: str) -> Document:
    """Read the dtypes of operators, one operator to a line: ``{ByOpType or ByNodeName: {name: {label: [dtypes]}}}``."""
    document = Document(text, file)
    document.data = {"ByOpType": {}, "ByNodeName": {}}
    allowed = "name::InputDtype:float16,…,OutputDtype:float16,… or OpType::Type:InputDtype:…,OutputDtype:…"
    for start, end in document.lines():
        head = _OPERATOR.match(document.text, start, end)
        labels = [*_LABEL.finditer(document.text, head.end(), end)] if head else []
        if not head or not labels or document.text[head.end() : labels[0].start()].strip():
            document.report((), (start, end), "these are no dtypes of an operator", allowed=allowed)
        elif document.add(
            path := (head.lastgroup, head[head.lastgroup or 0]), head.span(head.lastgroup or 0), (head.end(), end)
        ):
            for label in labels:
                document.put(path, label, "key", "value", listed=True)
    return document.in_order()


def parse_switches(text: str, file: str) -> Document:
    """Read CANN's switches of passes: as JSON, or in its older form, one ``Pass:on`` or ``Pass:off`` to a line."""
    if text.lstrip("\ufeff \t\r\n").startswith("{"):
        return parse_json(text, file)
    return parse_ini(text, file, sections=("GraphFusion",), inside=("Switch", "GraphFusion"), sign=":")


def parse_flags(text: str, file: str) -> Document:
    """Read ``--name=value --name …``; ``--path=file.json`` reads further flags from a file of texts. A bare flag is ``True``."""
    document = Document(text, file)
    for token in re.finditer(r"(?P<flag>--(?P<name>[^\s=]+))(=(?P<value>[^\s=]*))?(?!\S)|\S+", document.text):
        name, value = token["name"], token["value"]
        if not name:
            hint = f"--{token[0].lstrip('-')}" if re.fullmatch(r"-*[^-\s=][^\s=]*(=[^\s=]*)?", token[0]) else ""
            what = f"{show(token[0])} is not a flag"
            document.report((), token.span(), what, allowed="--name or --name=value", suggestion=hint)
        elif name == "path":
            content, why_not = read_file(value)
            inner = parse_json(content, value or "")
            if why_not or not isinstance(inner.data, dict):
                why = f"{show(value or '')} cannot be read: {why_not}" if why_not else "the file holds no dictionary of flags"
                document.report((name,), token.span("value" if value else 0), why)
                continue
            for flag, found in inner.data.items():
                if flag in document.data or flag == "path":
                    inner.problems.append(Diagnostic(flag, "is given twice", mark=inner.mark((flag, ""))))
                if not isinstance(found, str):
                    what = f"{show(found)} is not text"
                    inner.problems.append(Diagnostic(flag, what, allowed="text in quotes", mark=inner.mark((flag,))))
            document.problems += inner.problems
            document.data |= inner.data
            document.keys |= inner.keys
            document.values |= {path: mark for path, mark in inner.values.items() if path}
        elif document.add((name,), token.span("flag"), token.span("flag" if value is None else "value")):
            document.data[name] = True if value is None else value
    return document

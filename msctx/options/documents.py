"""Text documents with places: JSON and line-based files as plain data, every value of which knows its line and column.

Reading never raises for what a document holds. Everything wrong becomes a problem, so that one run reports all of them; of what is
not JSON, the first place is reported.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path as File
from typing import Any

from msctx.errors import LONGEST_LINE, Diagnostic, Mark
from msctx.options.kinds import show

Path = tuple[str | int, ...]
Span = tuple[int, int]


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

_PLAIN = re.compile(r"\\u[0-9a-fA-F]{4}|\\.|[^\x20-\x7e\n]")
_STRING_OR_COMMENT = re.compile(r'"(?:[^"\\\n]|\\[^\n])*"|//[^\n]*|#[^\n]*|/\*.*?\*/', re.DOTALL)


def parse_json(text: str, file: str, *, comments: bool = False) -> Parsed:
    """Read JSON; where it is not JSON, the data is an empty dictionary.

    Args:
        comments: allow ``// …``, ``/* … */`` and ``# …``, which JSON itself does not have.
    """
    source = Source(text, file)
    text = _STRING_OR_COMMENT.sub(_blanked, source.text) if comments else source.text
    twice: list[bool] = []

    def collected(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            found.setdefault(key, value)
        twice.append(len(found) < len(pairs))
        return found

    @cache
    def placed() -> Source:
        import yaml

        with suppress(yaml.YAMLError):  # it takes no keys of more than 1,024 characters
            _note_places(
                source, yaml.compose(_PLAIN.sub(_as_long, text), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)), ()
            )
        return source

    data: Any = {}
    try:
        data = json.loads(text, object_pairs_hook=collected, parse_constant=_refuse, parse_float=_finite)
        json.dumps(data, ensure_ascii=False).encode()  # half of a surrogate pair is not a character
    except json.JSONDecodeError as error:
        at = min(error.pos, len(source.text.rstrip()))  # not the empty line after the last one
        source.report((), (at, at + 1), f"this is not JSON: {error.msg}")
    except (ValueError, RecursionError) as error:
        data = {}
        source.report((), (0, 1), f"this is not JSON: {error}")
    if any(twice):
        placed()
    return Parsed(data, lambda path: placed().mark(path) if data else source.mark(path), in_order(source.problems))


def _refuse(word: str) -> Any:
    """NaN and the infinities, which Python would read, are not JSON."""
    raise ValueError(f"{word} is not a number")


def _finite(text: str) -> float:
    if math.isinf(found := float(text)):
        raise ValueError(f"{text} is too large a number")
    return found


def _note_places(source: Source, node: Any, path: Path) -> None:
    """Where each key and value of a tree of YAML stands: JSON is YAML."""
    source.values.setdefault(path, (node.start_mark.index, node.end_mark.index))
    if node.id == "mapping":
        for key, value in node.value:
            name, place = json.loads(source.text[key.start_mark.index : key.end_mark.index]), key.start_mark.index
            if source.add((*path, name), (place, key.end_mark.index), (value.start_mark.index, value.end_mark.index)):
                _note_places(source, value, (*path, name))
    elif node.id == "sequence":
        for number, item in enumerate(node.value):
            _note_places(source, item, (*path, number))


def _as_long(match: re.Match[str]) -> str:
    """What YAML may refuse, as something of the same length: of its tree the places alone count."""
    return " " if match[0] == "\t" else "_" * len(match[0])


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


def parse_switches(text: str, file: str) -> Parsed:
    """Read CANN's switches of passes: as JSON, or in its older form, one ``Pass:on`` or ``Pass:off`` to a line."""
    source = Source(text, file)
    if source.text.lstrip().startswith("{"):
        return parse_json(text, file)
    found: dict[str, str] = {}
    for line, start in source.lines():
        name, _, state = line.partition(":")
        end, at = start + len(line), start + len(name) + 1
        if source.add(("Switch", "GraphFusion", name.strip()), (start, start + len(name)), (min(at, end - 1), end)):
            found[name.strip()] = state.strip()
    return source.parsed({"Switch": {"GraphFusion": found}})


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

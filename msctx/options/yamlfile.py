"""YAML with places: every value knows its file, line and column; YAML 1.1's traps are closed or reported.

Plain scalars follow the YAML 1.2 core schema: ``ON`` is text and not True, ``1e-3`` is a number, ``12:30`` is text. A number with
a leading zero means one thing in YAML 1.1 and another in 1.2, so it is a problem, as is a key that stands twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from msctx.errors import FileError, Mark, Problem
from msctx.options.kinds import YamlWord

_WORDS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NULLS = {"", "~", "null", "Null", "NULL"}
_INT = re.compile(r"[-+]?(0|[1-9][0-9_]*)$")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+$")
_HEX_OCT = re.compile(r"0x[0-9a-fA-F]+$|0o[0-7]+$")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")
_SPECIAL = {".inf": "inf", "+.inf": "inf", "-.inf": "-inf", ".nan": "nan"}


class AmbiguousNumber(ValueError):
    """A number that YAML 1.1 and 1.2 read differently."""


def scalar(text: str) -> Any:
    """The value of a plain (unquoted) scalar; also how ``key=value`` on a command line is read."""
    if text in _NULLS:
        return None
    if text in _WORDS:
        return _WORDS[text]
    if text.lower() in YamlWord.TRUTH:
        return YamlWord(text)
    if _LEADING_ZERO.match(text):
        digits = text.lstrip("+-0").replace("_", "") or "0"
        octal = f"{int(digits, 8)} in YAML 1.1 and " if re.fullmatch("[0-7]+", digits) else ""
        raise AmbiguousNumber(f"{text} is {octal}{digits} in YAML 1.2; write the number without the leading zero, or quote it")
    if _INT.match(text):
        return int(text.replace("_", ""))
    if _HEX_OCT.match(text):
        return int(text, 0)
    if _FLOAT.match(text):
        return float(text)
    if text.lower() in _SPECIAL:
        return float(_SPECIAL[text.lower()])
    return text


class Document:
    """A YAML file as plain data, with the place of everything in it."""

    def __init__(self, file: str, text: str, node: yaml.Node | None) -> None:
        self.file, self._lines = file, text.splitlines()
        self._values: dict[tuple[Any, ...], yaml.Node] = {}
        self._keys: dict[tuple[Any, ...], yaml.Node] = {}
        self.problems: list[Problem] = []
        self.data = {} if node is None else self._build(node, (), set())

    def mark(self, path: tuple[Any, ...]) -> Mark | None:
        """The place of the value at *path*; with ``""`` appended, of its key; else of the nearest thing around it."""
        wants_key = path[-1:] == ("",)
        path = path[:-1] if wants_key else path
        node = self._keys.get(path) if wants_key else self._values.get(path)
        while node is None and path:
            path = path[:-1]
            node = self._values.get(path)
        return None if node is None else self._mark(node)

    def under(self, *prefix: Any) -> Callable[[tuple[Any, ...]], Mark | None]:
        """:meth:`mark` for paths below *prefix*; paths may hold dotted keys that the file nests."""

        def mark(path: tuple[Any, ...]) -> Mark | None:
            whole = (*prefix, *path)
            if whole in self._values or whole[-1:] == ("",):
                return self.mark(whole)
            return self.mark((*prefix, *(part for key in path for part in str(key).split("."))))

        return mark

    def _mark(self, node: yaml.Node) -> Mark:
        start, end = node.start_mark, node.end_mark
        width = end.column - start.column if end.line == start.line else 1
        text = self._lines[start.line] if start.line < len(self._lines) else ""
        return Mark(self.file, start.line + 1, start.column + 1, text, max(1, width))

    def _problem(self, path: tuple[Any, ...], node: yaml.Node, text: str) -> None:
        self.problems.append(Problem(".".join(map(str, path)), text, mark=self._mark(node)))

    def _build(self, node: yaml.Node, path: tuple[Any, ...], above: set[int]) -> Any:
        self._values[path] = node
        if id(node) in above:
            self._problem(path, node, "an alias that contains itself")
            return None
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        above = above | {id(node)}
        if isinstance(node, yaml.SequenceNode):
            return [self._build(child, (*path, i), above) for i, child in enumerate(node.value)]
        return self._mapping(node, path, above)

    def _scalar(self, node: yaml.ScalarNode, path: tuple[Any, ...]) -> Any:
        tag = node.tag.removeprefix("tag:yaml.org,2002:")
        if node.tag.startswith("!") or tag in ("binary", "set", "omap"):
            self._problem(path, node, f"the tag {node.tag} is not understood here")
            return None
        if node.style is not None or (tag == "str" and _is_tagged(node)):
            return node.value
        try:
            return scalar(node.value)
        except AmbiguousNumber as error:
            self._problem(path, node, str(error))
            return None

    def _mapping(self, node: yaml.MappingNode, path: tuple[Any, ...], above: set[int]) -> dict[Any, Any]:
        data: dict[Any, Any] = {}
        merged: dict[Any, Any] = {}
        seen: dict[Any, yaml.Node] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._problem(path, key_node, "a key must be a plain word")
                continue
            key = key_node.value
            if key in seen:
                self._problem((*path, key), key_node, f"stands twice; first on line {seen[key].start_mark.line + 1}")
                continue
            seen[key] = key_node
            self._keys[(*path, key)] = key_node
            if key == "<<":
                for source in value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]:
                    part = self._build(source, path, above)
                    merged = {**part, **merged} if isinstance(part, dict) else merged
                self._values[path] = node
            else:
                data[key] = self._build(value_node, (*path, key), above)
        return {**merged, **data}


def _is_tagged(node: yaml.ScalarNode) -> bool:
    """Whether the file itself says what a plain scalar is (``!!str 5``)."""
    return yaml.SafeLoader("").resolve(yaml.ScalarNode, node.value, (True, False)) != node.tag


def parse(text: str, file: str) -> Document:
    """Read YAML text; raises :class:`FileError` with every problem of its form."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        place = error.problem_mark or error.context_mark
        lines = text.splitlines()
        mark = None
        if place is not None:
            line = lines[place.line] if place.line < len(lines) else ""
            mark = Mark(file, place.line + 1, place.column + 1, line)
        what = "; ".join(part for part in (error.context, error.problem) if part)
        raise FileError([Problem("", f"this is not YAML: {what}", where=file, mark=mark)]) from None
    except yaml.YAMLError as error:
        raise FileError([Problem("", f"this is not YAML: {str(error).splitlines()[0]}", where=file)]) from None
    document = Document(file, text, node)
    if document.problems:
        raise FileError(document.problems)
    return document


def load(path: str | Path) -> Document:
    """Read a YAML file; raises :class:`FileError` when it is missing, unreadable or not YAML."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FileError([Problem("", f"not UTF-8 text (byte {error.start})", where=str(path))]) from None
    except OSError as error:
        raise FileError([Problem("", f"cannot be read: {error.strerror}", where=str(path))]) from None
    return parse(text, str(path))

"""YAML with places: every value knows its file, line and column; YAML 1.1's traps are closed or reported.

Plain scalars follow the YAML 1.2 core schema: ``ON`` is text and not True, ``1e-3`` is a number, ``12:30`` is text. A number with
a leading zero means one thing in YAML 1.1 and another in 1.2, so it is a problem, as is a key that is given twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from msctx.errors import Diagnostic, FileError, Mark
from msctx.options.kinds import INVALID, YamlWord

_WORDS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NULLS = {"", "~", "null", "Null", "NULL"}
_INT = re.compile(r"[-+]?(0|[1-9][0-9_]*)$")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+$")
_HEX_OCT = re.compile(r"0x[0-9a-fA-F]+$|0o[0-7]+$")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")
_SPECIAL = {".inf": "inf", "+.inf": "inf", "-.inf": "-inf", ".nan": "nan"}


_TAGS = {"map", "seq", "str", "int", "float", "bool", "null", "timestamp", "merge", "value"}


_RESOLVER = yaml.SafeLoader("")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's, where PyYAML was built with it: some ten times as fast."""

_DEPTH = 200
_TOO_DEEP = f"nested more than {_DEPTH} levels deep"

_NODES = 200_000
_TOO_MANY = f"more than {_NODES} values, counted again at each alias"

_DIGITS = 4000
"""Python reads no longer numbers."""


class AmbiguousNumber(ValueError):
    """A number that YAML 1.1 and 1.2 read differently, or that Python does not read."""


def scalar(text: str) -> Any:
    """The value of a plain (unquoted) scalar; also how ``key=value`` on a command line is read."""
    if text in _NULLS:
        return None
    if text in _WORDS:
        return _WORDS[text]
    if text.lower() in YamlWord.TRUTH:
        return YamlWord(text)
    if _LEADING_ZERO.match(text):
        sign, digits = text[: text[0] in "+-"].replace("+", ""), text.lstrip("+-").replace("_", "").lstrip("0") or "0"
        octal = f" {sign}{int(digits, 8)} in YAML 1.1 and" if re.fullmatch("[0-7]+", digits) else ""
        raise AmbiguousNumber(
            f"{text} is{octal} {sign}{digits} in YAML 1.2; write the number without the leading zero, or quote it"
        )
    if len(text) > _DIGITS and (_INT.match(text) or _HEX_OCT.match(text)):
        raise AmbiguousNumber("a number of thousands of digits; quote it if it is meant as text")
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
        self.problems: list[Diagnostic] = []
        self._left = _NODES
        self.data = {} if node is None else self._build(node, (), set())
        self.problems.sort(key=lambda p: (p.mark.line, p.mark.column) if p.mark else (0, 0))

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
        self.problems.append(Diagnostic(".".join(map(str, path)), text, mark=self._mark(node)))

    def _build(self, node: yaml.Node, path: tuple[Any, ...], above: set[int]) -> Any:
        self._values[path] = node
        self._left -= 1
        if self._left < 0:
            raise RecursionError(_TOO_MANY)
        if id(node) in above:
            self._problem(path, node, "an alias that contains itself")
            return INVALID
        tag = node.tag.removeprefix("tag:yaml.org,2002:")
        if tag not in _TAGS:
            self._problem(path, node, f"the tag {node.tag} is not understood here")
            return INVALID
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        above = above | {id(node)}
        if isinstance(node, yaml.SequenceNode):
            return [self._build(child, (*path, i), above) for i, child in enumerate(node.value)]
        return self._mapping(node, path, above)

    def _scalar(self, node: yaml.ScalarNode, path: tuple[Any, ...]) -> Any:
        if node.style or (node.tag.endswith(":str") and _is_tagged(node)):
            return node.value
        try:
            return scalar(node.value)
        except AmbiguousNumber as error:
            self._problem(path, node, str(error))
            return INVALID

    def _mapping(self, node: yaml.Node, path: tuple[Any, ...], above: set[int]) -> dict[Any, Any]:
        pairs: dict[Any, tuple[yaml.Node, yaml.Node]] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._problem(path, key_node, "a key must be a plain word")
            elif key_node.value in pairs:
                first = pairs[key_node.value][0].start_mark.line + 1
                self._problem((*path, key_node.value), key_node, f"is given twice; first on line {first}")
            else:
                pairs[key_node.value] = key_node, value_node
        merged = self._merged(pairs.pop("<<")[1], path, above) if "<<" in pairs else {}
        self._values[path] = node
        data = {}
        for key, (key_node, value_node) in pairs.items():  # after what is merged: their places count
            self._keys[(*path, key)] = key_node
            data[key] = self._build(value_node, (*path, key), above)
        return {**merged, **data}

    def _merged(self, node: yaml.Node, path: tuple[Any, ...], above: set[int]) -> dict[Any, Any]:
        """What ``<<`` brings in: a dictionary or a list of them, the first of which wins."""
        merged: dict[Any, Any] = {}
        for source in reversed(node.value) if isinstance(node, yaml.SequenceNode) else [node]:
            if isinstance(source, yaml.MappingNode):
                part = self._build(source, path, above)
                merged.update(part if isinstance(part, dict) else {})
            else:
                self._problem((*path, "<<"), source, "only dictionaries can be merged")
        return merged


def _is_tagged(node: yaml.ScalarNode) -> bool:
    """Whether the file itself sets the type of a scalar (``!!str 5``)."""
    return bool(_RESOLVER.resolve(yaml.ScalarNode, node.value, (True, False)) != node.tag)


def _composed(text: str) -> yaml.Node | None:
    """The tree of a document. Its depth is checked first: a parser in C has no recursion limit of its own."""
    depth = 0
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEPTH:
                raise RecursionError(_TOO_DEEP)
        return yaml.compose(text, Loader=_LOADER)
    except (yaml.YAMLError, UnicodeError):
        try:
            return yaml.compose(text, Loader=yaml.SafeLoader)  # its errors say more, and show the place
        except RecursionError:  # PyYAML 6.0.4 has a limit of its own in C
            raise RecursionError(_TOO_DEEP) from None
        except ValueError:
            raise yaml.YAMLError("an escape (\\U…) has a number that no character has") from None


def parse(text: str, file: str, *, collect: bool = False) -> Document:
    """Read YAML text; raises :class:`FileError` when it is not YAML.

    Args:
        collect: leave what else is wrong with its form (a key that is given twice, a number that could mean two) in
            ``problems``, for the caller to report together with its own; else that raises too.
    """
    try:
        document = Document(file, text, _composed(text))
    except yaml.MarkedYAMLError as error:
        place = error.problem_mark or error.context_mark
        lines = text.splitlines()
        mark = None
        if place is not None:
            line = lines[place.line] if place.line < len(lines) else ""
            mark = Mark(file, place.line + 1, place.column + 1, line)
        what = "; ".join(part for part in (error.context, error.problem) if part)
        raise FileError([Diagnostic("", f"this is not YAML: {what}", where=file, mark=mark)]) from None
    except yaml.YAMLError as error:
        raise FileError([Diagnostic("", f"this is not YAML: {str(error).splitlines()[0]}", where=file)]) from None
    except RecursionError as error:
        raise FileError([Diagnostic("", str(error), where=file)]) from None
    if document.problems and not collect:
        raise FileError(document.problems)
    return document


def load(path: str | Path, *, collect: bool = False) -> Document:
    """Read a YAML file; raises :class:`FileError` when it is missing, unreadable or not YAML."""
    try:
        with Path(path).open(encoding="utf-8-sig") as file:  # a pipe is read as well
            text = file.read()
    except UnicodeDecodeError as error:
        raise FileError([Diagnostic("", f"not UTF-8 text (byte {error.start})", where=str(path))]) from None
    except (OSError, ValueError) as error:  # ValueError: a path that no system takes
        raise FileError([Diagnostic("", f"cannot be read: {getattr(error, 'strerror', error)}", where=str(path))]) from None
    return parse(text, str(path), collect=collect)

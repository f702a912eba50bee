"""YAML and JSON with places: every value knows its file, line and column; YAML 1.1's traps are closed or reported.

Plain scalars follow the YAML 1.2 core schema: ``ON`` is text and not True, ``1e-3`` is a number, ``12:30`` is text. A number with
a leading zero means one thing in YAML 1.1 and another in 1.2, so it is a problem, as is a key that is given twice.
"""

from __future__ import annotations

import json
import math
import re
from contextlib import suppress
from os import PathLike
from typing import Any

import yaml

from msctx.errors import Diagnostic, FileError, Mark
from msctx.options.documents import Document, Path, read_file, scalar
from msctx.options.kinds import INVALID, BadValue

_TAGS = {"map", "seq", "str", "int", "float", "bool", "null", "timestamp", "merge", "value"}
_RESOLVER = yaml.SafeLoader("")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's, where PyYAML was built with it: some ten times as fast."""

_DEPTH = 200
_NODES = 200_000


class _Builder:
    """Makes plain data of the nodes of a document, and notes their places."""

    def __init__(self, document: Document) -> None:
        self.document, self.left = document, _NODES

    def problem(self, path: Path, node: yaml.Node, text: str) -> Any:
        self.document.report(path, _span(node), text)
        return INVALID

    def value(self, node: Any, path: Path = (), above: frozenset[int] = frozenset()) -> Any:
        self.document.values[path] = self.document.place(_span(node))
        self.left -= 1
        if self.left < 0:
            raise RecursionError
        if id(node) in above:
            return self.problem(path, node, "an alias that contains itself")
        if node.tag.removeprefix("tag:yaml.org,2002:") not in _TAGS:
            return self.problem(path, node, f"the tag {node.tag} is not understood here")
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path, above | {id(node)})
        if isinstance(node, yaml.SequenceNode):
            return [self.value(child, (*path, i), above | {id(node)}) for i, child in enumerate(node.value)]
        try:
            return self.scalar(node)
        except BadValue as error:
            return self.problem(path, node, str(error))

    def scalar(self, node: Any) -> Any:
        is_text = node.style or (node.tag.endswith(":str") and _is_tagged(node))
        return node.value if is_text else scalar(node.value)

    def key(self, node: Any) -> str:
        return str(node.value)

    def mapping(self, node: yaml.Node, path: Path, above: frozenset[int]) -> dict[Any, Any]:
        pairs: dict[Any, tuple[Mark, yaml.Node]] = {}
        merged: list[yaml.Node] = []
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.problem(path, key, "a key must be a plain word")
            elif (name := self.key(key)) in pairs:
                self.problem((*path, name), key, f"is given twice; first in {pairs[name][0]}")
            elif key.tag.endswith(":merge"):  # of several the first wins
                merged += reversed(value.value) if isinstance(value, yaml.SequenceNode) else [value]
            else:
                pairs[name] = self.document.place(_span(key)), value
        data: dict[Any, Any] = {}
        for source in merged:
            if not isinstance(source, yaml.MappingNode):
                self.problem((*path, "<<"), source, "only dictionaries can be merged")
            elif isinstance(part := self.value(source, path, above), dict):
                data |= part
        self.document.values[path] = self.document.place(_span(node))
        for name, (place, value) in pairs.items():  # after what is merged: their places count
            self.document.keys[(*path, name)] = place
            data[name] = self.value(value, (*path, name), above)
        return data


class _JsonBuilder(_Builder):
    def scalar(self, node: Any) -> Any:
        return json.loads(self.document.text[slice(*_span(node))])

    key = scalar


def _span(node: yaml.Node) -> tuple[int, int]:
    return node.start_mark.index, node.end_mark.index


def _is_tagged(node: yaml.ScalarNode) -> bool:
    """Whether the file itself sets the type of a scalar (``!!str 5``)."""
    return bool(_RESOLVER.resolve(yaml.ScalarNode, node.value, (True, False)) != node.tag)


def _composed(text: str) -> yaml.Node | None:
    """The tree of a document. Its depth is checked first: libyaml has no limit of recursion."""
    depth = 0
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEPTH:
                raise RecursionError
        return yaml.compose(text, Loader=_LOADER)
    except (yaml.YAMLError, UnicodeError):
        return yaml.compose(text, Loader=yaml.SafeLoader)  # its errors say more, and show the place


def parse(text: str, file: str, *, collect: bool = False) -> Document:
    """Read YAML text; raises :class:`FileError` when it is not YAML.

    Args:
        collect: leave what else is wrong with its form (a key that is given twice, a number that could mean two) in
            ``problems``, for the caller to report together with its own; else that raises too.
    """
    document, mark = Document(text, file), None
    try:
        if (node := _composed(document.text)) is not None:
            document.data = _Builder(document).value(node)
    except RecursionError:
        few = f"nested more than {_DEPTH} levels deep"
        what = f"more than {_NODES} values, counted again at each alias" if document.values else few
    except (yaml.YAMLError, ValueError) as error:  # ValueError: an escape whose number no character has
        if place := getattr(error, "problem_mark", None) or getattr(error, "context_mark", None):
            mark = document.place((place.index, place.index + 1))
        said = [getattr(error, "context", ""), getattr(error, "problem", "")]
        what = f"this is not YAML: {'; '.join(filter(None, said)) or str(error).splitlines()[0]}"
    else:
        if document.problems and not collect:
            raise FileError(document.in_order().problems)
        return document.in_order()
    raise FileError([Diagnostic("", what, where=file, mark=mark)]) from None


def load(path: str | PathLike[str], *, collect: bool = False) -> Document:
    """Read a YAML file; raises :class:`FileError` when it is missing, unreadable or not YAML."""
    text, why_not = read_file(path, pipes=True)
    if why_not:
        raise FileError([Diagnostic("", f"cannot be read: {why_not}", where=str(path))])
    return parse(text, str(path), collect=collect)


_NOT_PLAIN = re.compile(r"\\u[0-9a-fA-F]{4}|\\.|[^\x20-\x7e\n]")
_STRING_OR_COMMENT = re.compile(r'"(?:[^"\\\n]|\\[^\n])*"|//[^\n]*|#[^\n]*|/\*.*?\*/', re.DOTALL)


def parse_json(text: str, file: str, *, comments: bool = False) -> Document:
    """Read JSON; the data of anything else is an empty dictionary. It is YAML, but for some characters inside of strings.

    Args:
        comments: allow ``// …``, ``/* … */`` and ``# …``, which JSON itself does not have.
    """
    document = Document(text, file)
    text = _STRING_OR_COMMENT.sub(_without_comment, document.text) if comments else document.text
    try:
        data = json.loads(text, parse_constant=_refuse, parse_float=_finite)
        json.dumps(data, ensure_ascii=False).encode()  # half of a surrogate pair is not a character
        document.data = data
        plain = _NOT_PLAIN.sub(lambda match: " " if match[0] == "\t" else "_" * len(match[0]), text)
        with suppress(yaml.YAMLError):  # it takes no keys of more than 1,024 characters
            document.data = _JsonBuilder(document).value(yaml.compose(plain, Loader=_LOADER))
    except json.JSONDecodeError as error:
        at = min(error.pos, len(document.text.rstrip()))  # not the empty line after the last one
        document.report((), (at, at + 1), f"this is not JSON: {error.msg}")
    except (ValueError, RecursionError) as error:
        document.data = {}
        document.report((), (0, 1), f"this is not JSON: {error}")
    return document.in_order()


def _refuse(word: str) -> Any:
    """NaN and the infinities, which Python would read, are not JSON."""
    raise ValueError(f"{word} is not a number")


def _finite(text: str) -> float:
    if math.isinf(found := float(text)):
        raise ValueError(f"{text} is too large a number")
    return found


def _without_comment(match: re.Match[str]) -> str:
    """A comment as blanks, so that all else keeps its line and column; a string as it is."""
    return match[0] if match[0][0] == '"' else re.sub(r"[^\n]", " ", match[0])

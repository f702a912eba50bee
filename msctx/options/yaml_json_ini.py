"""YAML, JSON and INI with places: every value knows its file, line and column; YAML 1.1's traps are closed or reported.

Plain scalars follow the YAML 1.2 core schema: ``ON`` is text and not True, ``1e-3`` is a number, ``12:30`` is text. A number with
a leading zero means one thing in YAML 1.1 and another in 1.2, so it is a problem, as is a key that is given twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from os import PathLike
from typing import Any

import yaml

from msctx.errors import Diagnostic, FileError
from msctx.options.kinds import BadValue, Keys, show
from msctx.options.values_with_places import Document, Span, read_file, scalar

_TAGS = {"map", "seq", "str", "int", "float", "bool", "null", "timestamp", "merge", "value"}
_RESOLVER = yaml.SafeLoader("")


def _span(node: yaml.Node) -> Span:
    return node.start_mark.index, node.end_mark.index


def _plain_scalar(node: yaml.ScalarNode) -> Any:
    """The value of a scalar of YAML 1.2: quoted, and where the file itself sets its type (``!!str 5``), it is a text."""
    is_set = node.tag.endswith(":str") and _RESOLVER.resolve(yaml.ScalarNode, node.value, (True, False)) != node.tag
    return node.value if node.style or is_set else scalar(node.value)


def _data(document: Document, node: Any, path: Keys, read: Callable[[Any], Any], name_of: Callable[[Any], Any]) -> Any:
    """The plain data of a node; the document learns its places, and the problems of its form."""
    span = _span(node)
    document.values[path] = document.place(span)
    if node.tag.removeprefix("tag:yaml.org,2002:") not in _TAGS:
        return document.report(path, span, f"the tag {node.tag} is not understood here")
    if isinstance(node, yaml.SequenceNode):
        return [_data(document, child, (*path, i), read, name_of) for i, child in enumerate(node.value)]
    if isinstance(node, yaml.ScalarNode):
        try:
            return read(node)
        except BadValue as error:
            return document.report(path, span, error.text)
    data = {}
    for key, value in _pairs(node):
        if not isinstance(key, yaml.ScalarNode):
            document.report(path, _span(key), "a key must be a plain word")
        elif (at := (*path, name_of(key))) in document.keys:
            document.report(at, _span(key), f"is given twice; first in {document.keys[at]}")
        else:
            document.keys[at] = document.place(_span(key))
            data[at[-1]] = _data(document, value, at, read, name_of)
    return data


def _pairs(node: yaml.MappingNode) -> list[tuple[yaml.Node, yaml.Node]]:
    """The items of a dictionary; those of its merge keys (``<<``) that it does not give itself come first."""
    pairs: list[tuple[yaml.Node, yaml.Node]] = node.value
    own = [pair for pair in pairs if not pair[0].tag.endswith(":merge")]
    if len(own) < len(pairs):
        node.value = [pair for pair in pairs if pair not in own]
        _RESOLVER.flatten_mapping(node)
        given = {str(key.value) for key, _ in own}
        node.value = [
            pair for name, pair in {str(pair[0].value): pair for pair in node.value}.items() if name not in given
        ] + own
    return node.value  # type: ignore[no-any-return]


def parse(text: str, file: str, *, collect: bool = False) -> Document:
    """Read YAML text; raises :class:`FileError` when it is not YAML.

    Args:
        collect: leave what else is wrong with its form (a key that is given twice, a number that could mean two) in
            ``problems``, for the caller to report together with its own; else that raises too.
    """
    document, mark = Document(text, file), None
    try:
        if (root := yaml.compose(document.text, Loader=yaml.SafeLoader)) is not None:
            document.data = _data(document, root, (), _plain_scalar, lambda key: str(key.value))
    except RecursionError:
        what = "nested too deeply, or an alias contains itself"
    except (yaml.YAMLError, ValueError) as error:  # ValueError: an escape whose number no character has
        place = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        said = [getattr(error, "context", ""), getattr(error, "problem", "")]
        what = f"this is not YAML: {'; '.join(filter(None, said)) or str(error).splitlines()[0]}"
        mark = document.place((place.index, place.index + 1)) if place else None
    else:
        if document.in_order().problems and not collect:
            raise FileError(document.problems)
        return document
    raise FileError([Diagnostic("", what, file, mark=mark)])


def load(path: str | PathLike[str], *, collect: bool = False) -> Document:
    """Read a YAML file; raises :class:`FileError` when it is missing, unreadable or not YAML."""
    text, why_not = read_file(path)
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
    text = document.text
    if comments:  # as blanks, so that all else keeps its line and column
        text = _STRING_OR_COMMENT.sub(lambda m: m[0] if m[0][0] == '"' else re.sub(r"[^\n]", " ", m[0]), text)

    def read(node: yaml.Node) -> Any:
        return json.loads(text[slice(*_span(node))])

    try:
        document.data = json.loads(text)
        plain = _NOT_PLAIN.sub(lambda match: " " if match[0] == "\t" else "_" * len(match[0]), text)
        with suppress(yaml.YAMLError):  # it takes no keys of more than 1,024 characters
            document.data = _data(document, yaml.compose(plain, Loader=yaml.SafeLoader), (), read, read)
    except json.JSONDecodeError as error:
        at = min(error.pos, len(document.text.rstrip()))  # not the empty line after the last one
        document.report((), (at, at + 1), f"this is not JSON: {error.msg}")
    except (ValueError, RecursionError) as error:  # a number of thousands of digits
        document.data = {}
        document.report((), (0, 1), f"this is not JSON: {error}")
    return document.in_order()


_PAIR = re.compile(r"([^=]*[^=\s])\s*=\s*(.*)")


def parse_ini(text: str, file: str, *, first: tuple[str, ...] = ("lines before the first [section]",)) -> Document:
    """Read ``key=value`` lines under ``[section]`` headings, as ``{section: {key: text}}``; # and ; begin comment lines.

    *first*: the keys that lead to the lines before the first heading; ``()``: headings are none.
    """
    document, path = Document(text, file), first
    for span in document.lines():
        line = document.text[slice(*span)]
        if path and (heading := re.fullmatch(r"\[\s*(.*?)\s*\]", line)):
            path = (*path[:-1], heading[1])
            document.within(path)
            document.keys[path] = document.values[path] = document.place(span)
        elif match := _PAIR.fullmatch(document.text, *span):
            document.put((*path, match[1]), match.span(1), match.span(2))
        else:
            allowed = "key=value, one to a line" + ", or [section]" * bool(path)
            document.report(path, span, f"{show(line)} is not key=value", allowed=allowed)
    return document.in_order()

"""Reads ``.ir`` files, by the grammar of MindSpore's guide alone: whatever does not fit is an error at its line."""

import json
import re
from dataclasses import dataclass, field
from typing import Any


class Unreadable(ValueError):
    pass


@dataclass(frozen=True)
class Ref:
    """``%0``, ``%para1_x`` or ``@graph``."""

    to: str


@dataclass(frozen=True)
class Value:
    """``I64(1)``, ``Tensor(shape=[2], dtype=Float32)``, ``Float32``."""

    kind: str
    given: tuple[Any, ...] = ()
    named: tuple[tuple[str, Any], ...] = ()


@dataclass
class Node:
    place: str
    number: int
    name: str
    function: str
    given: list[Any]
    named: dict[str, Any]
    attrs: dict[str, Any]
    types: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    scope: str = ""
    lines: list[tuple[str, int, str]] = field(default_factory=list)


@dataclass
class Subgraph:
    name: str
    parameters: list[str]
    types: list[str] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    returned: Any = None
    returned_type: str = ""


@dataclass
class File:
    entry: str
    attrs: dict[str, str]
    parameters: dict[str, str]
    counts: tuple[int, int]
    subgraphs: dict[str, Subgraph]

    @property
    def nodes(self) -> list[Node]:
        return [node for graph in self.subgraphs.values() for node in graph.nodes]


class _Cursor:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def take(self, pattern: str) -> str:
        if (found := re.compile(pattern).match(self.text, self.at)) is None:
            raise Unreadable(f"{pattern} expected at {self.text[self.at : self.at + 40]!r}")
        self.at = found.end()
        return found[0]

    def has(self, literal: str) -> bool:
        if not self.text.startswith(literal, self.at):
            return False
        self.at += len(literal)
        return True

    def several(self, end: str) -> tuple[list[Any], dict[str, Any]]:
        given, named = list[Any](), dict[str, Any]()
        while not self.has(end):
            if given or named:
                self.take(", ")
            if key := re.compile(r"(\w+)=").match(self.text, self.at):
                self.at = key.end()
                named[key[1]] = self.value()
            else:
                given.append(self.value())
        return given, named

    def string(self) -> str:
        found, length = json.JSONDecoder().raw_decode(self.text[self.at :])
        if not isinstance(found, str):
            raise Unreadable(self.text[self.at :])
        self.at += length
        return found

    def value(self) -> Any:
        letter = self.text[self.at : self.at + 1]
        if letter in "%@":
            return Ref(self.take(r"[%@][\w.]+"))
        if letter == '"':
            return self.string()
        if self.has("..."):
            return ...
        if self.has("["):
            return self.several("]")[0]
        if self.has("("):
            return tuple(self.several(")")[0])
        if self.has("{"):
            found = dict[str, Any]()
            while not self.has("}"):
                if found:
                    self.take(", ")
                key = self.string()
                self.take(": ")
                found[key] = self.value()
            return found
        word = self.take(r"[-+\w./]+")
        if word == "None":
            return None
        if re.fullmatch(r"[-+]?(\d[\d.e+-]*|inf|nan)", word):
            return float(word) if not re.fullmatch(r"[-+]?\d+", word) else int(word)
        if not self.has("("):
            return Value(word)
        if word == "C128":
            return Value(word, (self.take(r"[^)]*\)?").rstrip(")"), self.has(")"))[:1])
        given, named = self.several(")")
        return Value(word, tuple(given), tuple(named.items()))


def types_in(text: str) -> list[str]:
    """``<Tensor[Float32], (2, 3)>, <null>`` → each; brackets must match."""
    found, depth, begin = list[str](), list[str](), 0
    for at, letter in enumerate(text):
        if letter in "<([":
            begin = at if not depth else begin
            depth.append({"<": ">", "(": ")", "[": "]"}[letter])
        elif letter in ">)]":
            if not depth or depth.pop() != letter:
                raise Unreadable(text)
            if not depth:
                found.append(text[begin : at + 1])
        elif not depth and letter not in ", ":
            raise Unreadable(text)
    if depth or ", ".join(found) != text:
        raise Unreadable(text)
    for one in found:
        if one != "<null>" and not re.fullmatch(
            r"<[A-Z]\w*(\[.*\])?, (NoShape|\w*Shape\(.*\)|\(.*\))(, (value|ref_key)=.+)?>", one
        ):
            raise Unreadable(one)
    return found


def read(text: str) -> File:
    lines = text.splitlines()
    at = 0

    def line(pattern: str) -> re.Match[str]:
        nonlocal at
        if at >= len(lines) or (found := re.fullmatch(pattern, lines[at])) is None:
            raise Unreadable(f"line {at + 1}: {pattern} expected: {lines[at] if at < len(lines) else 'the end'}")
        at += 1
        return found

    def is_next(begin: str) -> bool:
        return at < len(lines) and lines[at].startswith(begin)

    entry = line(r"# IR entry: @(\S+)")[1]
    count = int(line(r"# Total subgraphs: (\d+)")[1])
    line("")
    line("# Attrs:")
    attrs = {}
    while lines[at]:
        found = line(r"(\w+): (.*)")
        attrs[found[1]] = found[2]
    line("")
    many = int(line(r"# Total params: (\d+)")[1])
    line("# Params:")
    parameters = {}
    for number in range(1, many + 1):
        found = line(r"(%para(\d+)_[\w.]+): (.*)")
        if int(found[2]) != number:
            raise Unreadable(found[0])
        (parameters[found[1]],) = types_in(found[3])
    line("")
    line("Node counting information:")
    counts = (int(line(r"Total number of nodes: (\d+)")[1]), int(line(r"Total number of cnodes: (\d+)")[1]))
    subgraphs = dict[str, Subgraph]()
    while at < len(lines):
        if not lines[at]:
            at += 1
            continue
        types = None
        if is_next("# Parameters"):
            found = line(r"# Parameters: (\d+), \((.*)\)")
            types = types_in(found[2])
            if len(types) != int(found[1]):
                raise Unreadable(found[0])
        found = line(r"subgraph @(\S+)\((.*)\) \{")
        graph = Subgraph(found[1], [one for one in found[2].split(", ") if one], types or [])
        if graph.name in subgraphs or (types is None) is not (graph.name == entry):
            raise Unreadable(found[0])
        if types is not None and len(types) != len(graph.parameters):
            raise Unreadable(found[0])
        subgraphs[graph.name] = graph
        while is_next("  %"):
            graph.nodes.append(_node(line))
            while is_next("      # In file"):
                found = line(r"      # In file (.*):(\d+)/(.*)/")
                graph.nodes[-1].lines.append((found[1], int(found[2]), found[3]))
        cursor = _Cursor(line(r"  Return\(.*\)")[0].removeprefix("  Return("))
        graph.returned = cursor.value()
        cursor.take(r"\)$")
        (graph.returned_type,) = types_in(line(r"      : \((.*)\)")[1])
        line(r"\}")
    if len(subgraphs) != count or next(iter(subgraphs)) != entry:
        raise Unreadable("the subgraphs are not those of the head")
    return File(entry, attrs, parameters, counts, subgraphs)


def _node(line: Any) -> Node:
    found = line(r"  (%(\d+))\(CNode_(\d+)\$([\w.]+)\) = ([\w.]+)(\(.*)")
    if found[2] != found[3]:
        raise Unreadable(found[0])
    cursor = _Cursor(found[6])
    cursor.take(r"\(")
    given, named = cursor.several(")")
    attrs = {}
    if cursor.has(" cnode_attrs: {"):
        while not cursor.has("}"):
            key = cursor.take(r"\w+")
            cursor.take(": ")
            attrs[key] = cursor.value()
    cursor.take("$")
    node = Node(found[1], int(found[2]), found[4], found[5], given, named, attrs)
    types = line(r"      : \((.*)\) -> \((.*)\)")
    node.types, node.made = types_in(types[1]), types_in(types[2])
    if len(node.types) != len(given) + len(named) or len(node.made) != 1:
        raise Unreadable(types[0])
    node.scope = line(r"      # Fullname with scope: \((.*)\)")[1]
    return node

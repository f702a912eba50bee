"""Reads the part of Graphviz's grammar that drawings use; whatever does not fit is an error."""

import re
from dataclasses import dataclass, field

_TOKEN = re.compile(r'\s*(?P<token>"(?:[^"\\]|\\.)*"|->|[A-Za-z_]\w*|-?\d+|[{}\[\]=,;])', re.DOTALL)


@dataclass
class Drawing:
    name: str
    nodes: dict[str, dict[str, str]] = field(default_factory=dict)
    edges: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    clusters: dict[str, list[str]] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)


def _tokens(text: str) -> list[str]:
    found, at = [], 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"no token: {text[at : at + 40]!r}")
        found.append(match["token"])
        at = match.end()
    return found


def _word(token: str) -> str:
    if token.startswith('"'):
        return re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), token[1:-1])
    if not re.fullmatch(r"\w+", token):
        raise ValueError(f"a name expected: {token}")
    return token


def read(text: str) -> Drawing:
    tokens = _tokens(text)[::-1]

    def expect(token: str) -> None:
        if (found := tokens.pop()) != token:
            raise ValueError(f"{token} expected: {found}")

    def attributes() -> dict[str, str]:
        found = dict[str, str]()
        if tokens[-1] == "[":
            tokens.pop()
            while tokens[-1] != "]":
                key = _word(tokens.pop())
                expect("=")
                found[key] = _word(tokens.pop())
                if tokens[-1] == ",":
                    tokens.pop()
            tokens.pop()
        return found

    expect("digraph")
    drawing = Drawing(_word(tokens.pop()))

    def statements(cluster: str) -> None:
        expect("{")
        while tokens[-1] != "}":
            if tokens[-1] == "subgraph":
                tokens.pop()
                name = _word(tokens.pop())
                drawing.clusters[name] = []
                statements(name)
                continue
            name = _word(tokens.pop())
            if tokens[-1] == "=":
                tokens.pop()
                value = _word(tokens.pop())
                if name == "label":
                    drawing.labels[cluster] = value
            elif tokens[-1] == "->":
                tokens.pop()
                to = _word(tokens.pop())
                drawing.edges.append((name, to, attributes()))
            else:
                found = attributes()
                if name != "node":
                    assert name not in drawing.nodes
                    drawing.nodes[name] = found
                    drawing.clusters[cluster].append(name)
        expect("}")

    statements("")
    if tokens:
        raise ValueError(f"more after the end: {tokens[-1]}")
    return drawing

"""Pages, messages and rendered docstrings are in the field's plain English: words of tests/data/words.toml become no more."""

from __future__ import annotations

import ast
import inspect
import os
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "tests" / "data" / "words.toml"
DATA: dict[str, Any] = pytest.importorskip("tomllib").loads(FILE.read_text(encoding="utf-8"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "kernels" / "README.md"]
LONGEST = 30
"""Words of a sentence."""


def prose(text: str) -> str:
    """A page's text without code, addresses, and what other code writes; its lines keep their numbers."""

    def lines_of(found: re.Match[str]) -> str:
        return "\n" * found[0].count("\n")

    text = re.sub(r"^.*<!-- language: ok -->$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^```.*?^```$|^<!-- ([\w-]+): .*?<!-- /\1 -->|<!--.*?-->", lines_of, text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", lambda code: "CODE" + lines_of(code), text))


def literals(text: str) -> Iterator[tuple[int, str]]:
    """Line and text of each string of three words and more that is no docstring."""
    tree, rows = ast.parse(text), text.splitlines()
    documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
            allowed = any("# language: ok" in row for row in rows[node.lineno - 1 : node.end_lineno])
            if len(node.value.split()) >= 3 and not allowed:
                yield node.lineno, node.value


def rendered() -> Iterator[tuple[str, str]]:
    """Place and text of each docstring that docs/reference/api.md shows."""
    api = (ROOT / "docs/reference/api.md").read_text(encoding="utf-8")
    for name, members in re.findall(r"^\.\. auto\w+:: ([\w.]+)(\n +:members:.*)?", api, re.MULTILINE):
        module, _, attribute = name.rpartition(".")
        path = ROOT / f"{module.replace('.', '/')}.py"
        if not path.exists():  # it is defined elsewhere
            shown = inspect.unwrap(getattr(import_module(module), attribute))
            path, attribute = Path(inspect.getsourcefile(shown) or ""), shown.__name__
        (node,) = (part for part in ast.parse(path.read_text(encoding="utf-8")).body if getattr(part, "name", "") == attribute)
        assert isinstance(node, ast.ClassDef | ast.FunctionDef)
        for part in [node, *(part for part in node.body[1:] if members)]:
            text = part.value if isinstance(part, ast.Expr) else getattr(getattr(part, "body", [None])[0], "value", None)
            if isinstance(text, ast.Constant) and not getattr(part, "name", "").startswith("_"):
                for number, line in enumerate(str(text.value).split("\n"), text.lineno):
                    yield f"{path.relative_to(ROOT)}:{number}", line


def hits(place: str, text: str) -> list[str]:
    """The place, the words and what to use instead, of each use of a word that has a better one."""
    return [
        f"{place}: {found[0].strip()!r} ({row['name']}): use {row['use']}"
        for row in DATA["words"]
        if row.get("only", "") in place
        for found in re.finditer(row["pattern"], text, re.MULTILINE)
    ]


def in_pages() -> list[str]:
    lines = ((page, *row) for page in PAGES for row in enumerate(prose(page.read_text(encoding="utf-8")).split("\n"), 1))
    return [hit for page, number, line in lines for hit in hits(f"{page.relative_to(ROOT)}:{number}", line)]


def in_code() -> list[str]:
    files = sorted((ROOT / "msctx").rglob("*.py"))
    texts = [(f"{f.relative_to(ROOT)}:{line}", text) for f in files for line, text in literals(f.read_text(encoding="utf-8"))]
    for file in [path for path in sorted((ROOT / "kernels").rglob("*")) if path.suffix in (".cpp", ".cu", ".h")]:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            texts += [(f"{file.relative_to(ROOT)}:{number}", text) for text in re.findall(r'//.*|"((?:[^"\\]|\\.)*)"', line)]
    return [hit for place, text in (*texts, *rendered()) for hit in hits(place, text)]


def long_sentences() -> list[str]:
    found = []
    for page in PAGES:
        text = re.sub(r"^[|#!].*", "", prose(page.read_text(encoding="utf-8")), flags=re.MULTILINE)
        for sentence in re.finditer(r"\S.*?(?:[.!?:](?=\s)|(?=\n\s*\n|\n[-*]|\n\d+\.|\Z))", text, re.DOTALL):
            if (count := len(sentence[0].split())) > LONGEST:
                place = f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, sentence.start()) + 1}"
                found.append(f"{place}: {count} words; use two sentences: {' '.join(sentence[0].split())}")
    return found


@pytest.mark.parametrize(("name", "count"), [("pages", in_pages), ("code", in_code), ("long_sentences", long_sentences)])
def test_words_become_no_more(name: str, count: Callable[[], list[str]]) -> None:
    found, allowed = count(), DATA["counts"][name]
    if os.environ.get("UPDATE_LANGUAGE") and len(found) < allowed:
        text = FILE.read_text(encoding="utf-8")
        FILE.write_text(re.sub(rf"^{name} = .*", f"{name} = {len(found)}", text, flags=re.MULTILINE), encoding="utf-8")
    assert len(found) <= allowed, f"{len(found)} in {name}, {allowed} allowed:\n" + "\n".join(found)

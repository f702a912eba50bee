"""A Python script as text and syntax tree. None of it is run."""

from __future__ import annotations

import ast
import platform
import re
import tokenize
import warnings
from collections.abc import Iterator
from pathlib import Path

from msctx.errors import Diagnostic, FileError, Mark, one_line
from msctx.plan import TARGETS

_NEWLINE = re.compile(r"\r\n|\r|\n")
"""What ends a line for Python; ``str.splitlines`` also breaks at form feeds and Unicode's separators."""

_TARGET = re.compile(rf".*device_target\W* == '({'|'.join(TARGETS)})'")
_BLOCKS = (
    *(ast.Lambda, ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While),
    *(ast.ExceptHandler, ast.match_case),
)


class Script:
    """A parsed script."""

    def __init__(self, file: str, text: str) -> None:
        self.file, self.name = file, Path(file).name
        self.lines = _NEWLINE.split(text)
        self.tree = self._parse(text)
        self.parents: dict[ast.AST, tuple[ast.AST, str]] = {}
        for node in ast.walk(self.tree):  # no function here calls itself: a sum of 900 terms is a tree 900 deep
            for field, value in ast.iter_fields(node):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        self.parents[child] = node, field

    def _parse(self, text: str) -> ast.Module:
        mark = None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what Python finds odd in the script is not our matter
                return ast.parse(text)
        except (SyntaxError, ValueError) as error:  # ValueError: characters that no source may hold
            why = f"this is not Python (as {platform.python_version()} reads it): {getattr(error, 'msg', error)}"
            line = getattr(error, "lineno", None) or 0
            mark = self._mark(line, max(1, getattr(error, "offset", None) or 1), 1) if 0 < line <= len(self.lines) else None
        except (RecursionError, MemoryError):
            why = "nested too deeply for Python to read"
        raise FileError([Diagnostic("", why, where=self.file, mark=mark)])

    def _mark(self, line: int, column: int, width: int) -> Mark:
        return Mark(self.file, line, column, self.lines[line - 1], width)

    def _column(self, line: int, offset: int) -> int:
        """The column, from 1, of a place that the tree gives in bytes of UTF-8."""
        return len(self.lines[line - 1].encode()[:offset].decode(errors="ignore")) + 1

    def mark(self, node: ast.AST, width: int = 0) -> Mark:
        """The place of an expression, or of the first *width* characters of it."""
        line = min(getattr(node, "lineno", 1), len(self.lines))
        column = self._column(line, getattr(node, "col_offset", 0))
        end = getattr(node, "end_lineno", None)
        if not width:
            width = self._column(line, getattr(node, "end_col_offset", 0)) - column if end == line else 1
        return self._mark(line, column, max(1, width))

    def written(self, node: ast.AST) -> str:
        """An expression on one line."""
        try:
            return one_line(ast.unparse(node))
        except RecursionError:
            return "…"

    def around(self, node: ast.AST) -> Iterator[tuple[ast.AST, str, ast.AST]]:
        """What an expression stands inside, from the inside out: (what, in which field of it, the part of it)."""
        while node in self.parents:
            parent, field = self.parents[node]
            yield parent, field, node
            node = parent

    def inside(self, node: ast.AST) -> str:
        """The conditions and loops on which it depends whether an expression is ever evaluated."""
        found = []
        for outer, field, _ in self.around(node):
            is_main = getattr(getattr(getattr(outer, "test", None), "left", None), "id", "") == "__name__"  # true of a script
            if isinstance(outer, _BLOCKS) and (field == "orelse" or (field == "body" and not is_main)):
                line = (outer.pattern if isinstance(outer, ast.match_case) else outer).lineno
                words = one_line(self.lines[line - 1].partition("#")[0].strip(), 60).removesuffix(":")
                found.append(f"else of {words}" if field == "orelse" else words)
        return ", ".join(reversed(found))

    def devices(self, node: ast.AST) -> set[str]:
        """The devices on which an expression may be evaluated, by the conditions around it that compare device_target."""
        found = {*TARGETS.values()}
        for outer, field, _ in self.around(node):
            test = getattr(outer, "test", None)
            is_and = isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) and field == "body"
            for part in getattr(test, "values", []) if is_and else [test]:
                given = _TARGET.fullmatch(self.written(part)) if isinstance(part, ast.Compare) else None
                if given and field in ("body", "orelse"):
                    found = found & {TARGETS[given[1]]} if field == "body" else found - {TARGETS[given[1]]}
        return found


def load(path: str) -> Script:
    """Read a script; raises :class:`FileError` when it is missing, cannot be decoded or is not Python."""
    if path.endswith(".ipynb"):
        hint = f"jupyter nbconvert --to script {path}"
        raise FileError([Diagnostic("", "is a notebook; make a script of it first", where=path, suggestion=hint)])
    try:
        with tokenize.open(path) as file:
            text = file.read()
    except (SyntaxError, LookupError, UnicodeError) as error:
        why = f"cannot be decoded: {one_line(str(error))}; save it as UTF-8"
    except (OSError, ValueError) as error:  # ValueError: a path that no system takes
        why = f"cannot be read: {getattr(error, 'strerror', None) or error}"
    else:
        return Script(path, text)
    raise FileError([Diagnostic("", why, where=path)])

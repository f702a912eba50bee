"""A Python script as text and as a syntax tree: where each expression stands, and what it stands inside. None of it is run."""

from __future__ import annotations

import ast
import io
import platform
import re
import tokenize
import warnings
from collections.abc import Iterator
from pathlib import Path

from msctx.errors import Diagnostic, FileError, Mark, one_line

_NEWLINE = re.compile(r"\r\n|\r|\n")
"""What ends a line for Python; ``str.splitlines`` also breaks at form feeds and Unicode's separators."""

_Outer = ast.stmt | ast.expr | ast.ExceptHandler | ast.pattern
"""What a condition is read from; all of them have a place."""


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
        version = platform.python_version()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what Python finds odd in the script is not our matter
                return ast.parse(text)
        except SyntaxError as error:
            problem = f"this is not Python (as {version} reads it): {error.msg}"
            raise FileError([Diagnostic("", problem, where=self.file, mark=self._error_mark(error))]) from None
        except (RecursionError, MemoryError):
            raise FileError([Diagnostic("", "nested too deeply for Python to read", where=self.file)]) from None
        except ValueError as error:  # characters that no source may hold
            raise FileError([Diagnostic("", f"this is not Python (as {version} reads it): {error}", where=self.file)]) from None

    def _error_mark(self, error: SyntaxError) -> Mark | None:
        if not error.lineno or error.lineno > len(self.lines):
            return None
        start = max(1, error.offset or 1)
        same = error.end_lineno == error.lineno and error.end_offset
        return self._mark(error.lineno, start, max(1, (error.end_offset or 0) - start) if same else 1)

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
        """An expression as it is written, on one line."""
        first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0) or 0
        if not 0 < first <= last <= len(self.lines):
            return ""
        lines = [line.encode() for line in self.lines[first - 1 : last]]
        lines[-1] = lines[-1][: getattr(node, "end_col_offset", None)]
        lines[0] = lines[0][getattr(node, "col_offset", 0) :]
        return one_line(" ".join(line.decode(errors="replace") for line in lines))

    def around(self, node: ast.AST) -> Iterator[tuple[ast.AST, str, ast.AST]]:
        """What an expression stands inside, from the inside out: (what, in which field of it, the part of it)."""
        while node in self.parents:
            parent, field = self.parents[node]
            yield parent, field, node
            node = parent

    def inside(self, node: ast.AST) -> list[tuple[str, int]]:
        """The functions, conditions and loops on which it depends whether an expression is ever evaluated, with their lines."""
        found = [(words, outer.lineno) for outer, words in self._conditions(node)]
        return found[::-1]

    def _conditions(self, node: ast.AST) -> Iterator[tuple[_Outer, str]]:
        for outer, field, _ in self.around(node):
            match outer, field:
                case ast.FunctionDef() | ast.AsyncFunctionDef(), "body":
                    yield outer, f"def {outer.name}()"
                case ast.Lambda(), "body":
                    yield outer, "lambda"
                case ast.If() | ast.IfExp(), "body" if not _is_main(outer.test):
                    yield outer, f"if {self._short(outer.test)}"
                case ast.If() | ast.IfExp(), "orelse":
                    yield outer, f"else of if {self._short(outer.test)}"
                case ast.For() | ast.AsyncFor(), "body" | "orelse":
                    yield outer, f"for {self._short(outer.target)} in {self._short(outer.iter)}"
                case ast.While(), "body" | "orelse" if not isinstance(outer.test, ast.Constant):
                    yield outer, f"while {self._short(outer.test)}"
                case ast.ExceptHandler(), "body":
                    yield outer, f"except {self._short(outer.type)}" if outer.type else "except"
                case ast.match_case(), "body":
                    yield outer.pattern, f"case {self._short(outer.pattern)}"

    def _short(self, node: ast.AST) -> str:
        return one_line(self.written(node), 60)


def _is_main(test: ast.expr) -> bool:
    """``__name__ == "__main__"``: so it is when a script runs, and it needs no note."""
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"


def load(path: str) -> Script:
    """Read a script; raises :class:`FileError` when it is missing, cannot be decoded or is not Python."""
    try:
        data = Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a path that no system takes
        raise FileError([Diagnostic("", f"cannot be read: {getattr(error, 'strerror', None) or error}", where=path)]) from None
    try:
        encoding = tokenize.detect_encoding(io.BytesIO(data).readline)[0]
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = f"not {error.encoding} text (byte {error.start}, line {line}), and the script declares no other encoding"
        raise FileError([Diagnostic("", problem, where=path)]) from None
    except (SyntaxError, LookupError, UnicodeError) as error:
        problem = f"cannot be decoded: {one_line(str(error))}"
        raise FileError([Diagnostic("", problem, where=path, suggestion="save it as UTF-8")]) from None
    return Script(path, text)

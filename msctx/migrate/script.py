"""A Python script, or a notebook, as text and syntax tree. None of it is run."""

from __future__ import annotations

import ast
import json
import platform
import re
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from msctx.errors import Diagnostic, FileError, Mark, one_line

_NEWLINE = re.compile(r"\r\n|\r|\n")
"""What ends a line for Python; ``str.splitlines`` also breaks at form feeds and Unicode's separators."""

_MAGIC = re.compile(r"^(\s*)(?:(?:[\w, ]+=\s*)?(?:%{1,2}\w|!(?!=)|\?)|[\w.]+\?+\s*$).*")
"""A line of a notebook that IPython reads and Python does not: a magic, a command of the shell, a question."""
_ENV = re.compile(r"^(\s*)(%(?:set_)?env\s+(\w+).*)")
_PYTHON_CELLS = ("%%time", "%%timeit", "%%capture", "%%prun")
"""Magics of whole cells that hold Python."""

_BLOCKS = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While),
    *(ast.ExceptHandler, ast.match_case),
)


class Script:
    """A parsed script; of a notebook, all cells in a row, and *places*: for each line, its cell and its line there."""

    def __init__(self, file: str, text: str, places: Sequence[tuple[str, int]] = ()) -> None:
        self.file, self.name = file, Path(file).name
        self.lines = _NEWLINE.split(text)
        self.places = places
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
        file, number = self.place(line)
        return Mark(file, number, column, self.lines[line - 1], width)

    def place(self, line: int) -> tuple[str, int]:
        """How messages name a line."""
        return self.places[min(line, len(self.places)) - 1] if self.places else (self.file, line)

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

    def inside(self, node: ast.AST) -> list[tuple[str, int]]:
        """The functions, conditions and loops on which it depends whether an expression is ever evaluated, with their lines."""
        found = []
        for outer, field, _ in self.around(node):
            is_main = getattr(getattr(getattr(outer, "test", None), "left", None), "id", "") == "__name__"  # true of a script
            if isinstance(outer, _BLOCKS) and (field == "orelse" or (field == "body" and not is_main)):
                line = (outer.pattern if isinstance(outer, ast.match_case) else outer).lineno
                words = one_line(self.lines[line - 1].partition("#")[0].strip(), 60).removesuffix(":")
                found.append((f"else of {words}" if field == "orelse" else words, self.place(line)[1]))
        return found[::-1]


def load(path: str) -> Script:
    """Read a script or a notebook; raises :class:`FileError` when it is missing, cannot be decoded or is not Python."""
    try:
        with tokenize.open(path) as file:
            text = file.read()
    except (SyntaxError, LookupError, UnicodeError) as error:
        why = f"cannot be decoded: {one_line(str(error))}; save it as UTF-8"
    except (OSError, ValueError) as error:  # ValueError: a path that no system takes
        why = f"cannot be read: {getattr(error, 'strerror', None) or error}"
    else:
        return Script(path, *_cells(path, text)) if path.endswith(".ipynb") else Script(path, text)
    raise FileError([Diagnostic("", why, where=path)])


def _cells(file: str, text: str) -> tuple[str, list[tuple[str, int]]]:
    """The code of a notebook, and the place of each line: cells and lines count from 1. What IPython alone reads is ``pass``."""
    lines, places = [], []
    try:
        for i, cell in enumerate(json.loads(text)["cells"], 1):
            if cell["cell_type"] == "code":
                source = "".join(cell["source"])
                magic = next(iter(source.split()), "")
                is_python = not magic.startswith("%%") or magic in _PYTHON_CELLS
                code = [
                    _MAGIC.sub(r"\1pass", _ENV.sub(r"\1'\3'  # \2", line)) if is_python else "pass"
                    for line in _NEWLINE.split(source)
                ]
                lines += code
                places += [(f"{file}:cell {i}", line) for line in range(1, len(code) + 1)]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise FileError([Diagnostic("", "this is not a notebook of version 4 of the format", where=file)]) from None
    return "\n".join(lines), places

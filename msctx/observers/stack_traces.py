"""Reads the stack traces that torch keeps of operators, as text of Python's own form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_FRAME = re.compile(
    r'^ *File "(?P<file>.*)", line (?P<line>[0-9]+), in (?P<function>.*)(?:\n(?! *File ")(?P<code>[^\n]*))?', re.MULTILINE
)


class Frame(NamedTuple):
    file: str
    line: int
    function: str
    code: str


def frames(trace: str) -> Iterator[Frame]:
    """The outermost first."""
    for found in _FRAME.finditer(trace):
        yield Frame(found["file"], int(found["line"]), found["function"], (found["code"] or "").strip())

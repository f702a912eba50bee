"""Where the operators of a step were called: Python's frames, and the calls of modules around them."""

from __future__ import annotations

import itertools
import sys
from collections import defaultdict
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import NamedTuple

from msctx.observers import modules
from msctx.observers.collector import Row


class Origin(NamedTuple):
    frames: tuple[tuple[CodeType, int], ...] = ()
    """With the line of each, the innermost first, without msctx."""
    modules: tuple[tuple[str, int], ...] = ()
    """The outermost first: ``path.Class``, and how often it had been called in the step."""


class Origins:
    def __init__(self) -> None:
        self._met: dict[int, Origin] = {}
        self._calls: dict[int, tuple[str, int]] = {}
        self._counts: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)

    def meet(self, number: int) -> None:
        """The operator that will have the row of this number begins here, in this thread."""
        self._met[number] = Origin(tuple(_frames()), tuple(self._call(*call) for call in modules.around()))

    def _call(self, number: int, name: str) -> tuple[str, int]:
        if number not in self._calls:
            self._calls[number] = name, next(self._counts[name])
        return self._calls[number]

    def of(self, row: Row) -> Origin:
        """In a backward pass: of the operator of the forward pass that made the node."""
        return self._met.get(row["maker" if row["direction"] == "backward" else "id"], Origin())


def _frames() -> Iterator[tuple[CodeType, int]]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] != "msctx":
            yield frame.f_code, frame.f_lineno
        frame = frame.f_back

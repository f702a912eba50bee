"""A pass of ours among inductor's, beside those of a program."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any


def passes_of(found: Any) -> tuple[Any, ...]:
    """The passes that a program has in one of inductor's places: none, one, or, since torch 2.13, several."""
    return tuple(found) if isinstance(found, (list, tuple)) else () if found is None else (found,)


class Beside:
    """A pass of inductor over a graph, after those that the program has in the same place.

    *programs_own*: returns these.
    """

    def __init__(self, programs_own: Callable[[], Any]) -> None:
        self._programs_own = programs_own

    @classmethod
    def when_loaded(cls) -> None:
        """Inductor takes it for one of its passes, whose code its caches may keep."""
        from torch._inductor.custom_graph_pass import CustomGraphPass

        CustomGraphPass.register(cls)

    def apply(self, graph: Any) -> None:
        raise NotImplementedError

    def _passes(self) -> tuple[Any, ...]:
        return passes_of(self._programs_own())

    def __call__(self, graph: Any) -> None:
        for one in self._passes():
            one(graph)
        self.apply(graph)

    def uuid(self) -> Any:
        """By which torch's caches distinguish the code; None, as of a pass without one: they are not requested."""
        ids = [getattr(one, "uuid", lambda: None)() for one in self._passes()]
        return None if None in ids else (type(self).__name__, _digest(self.apply.__code__.co_filename), *ids)


class Unchanged(Beside):
    """Leaves graphs as they are: torch's caches distinguish code by it."""

    def apply(self, graph: Any) -> None:
        pass


@cache
def _digest(file: str) -> str:
    """What another version has put into torch's caches is compiled anew."""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]

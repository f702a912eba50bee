"""Stands in front of what shows an exception that nobody has caught."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Hook:
    """Between the interpreter and ``owner.excepthook``, of sys or threading.

    *shown* gets the arguments, and returns those that are handed on. What another library puts in front meanwhile stays there after
    :meth:`remove`, and from then on the arguments pass as they are.
    """

    def __init__(self, owner: Any, shown: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> None:
        self._owner, self._before, self._is_on = owner, owner.excepthook, True

        def hook(*args: Any) -> None:
            self._before(*(shown(args) if self._is_on else args))

        self._hook = owner.excepthook = hook

    def remove(self) -> None:
        self._is_on = False
        if self._owner.excepthook is self._hook:
            self._owner.excepthook = self._before

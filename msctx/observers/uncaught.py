"""Stands in front of a function, such as the one that shows an exception that nobody has caught."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Hook:
    """Between those who call ``owner.name`` and that function, such as ``excepthook`` of sys or threading.

    *shown* gets the arguments, and returns those that are handed on. What another library puts in front meanwhile stays there after
    :meth:`remove`, and from then on the arguments pass as they are.
    """

    def __init__(self, owner: Any, name: str, shown: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> None:
        self._owner, self._name, self._before, self._is_on = owner, name, getattr(owner, name), True

        def hook(*args: Any) -> None:
            self._before(*(shown(args) if self._is_on else args))

        self._hook = hook
        setattr(owner, name, hook)

    def remove(self) -> None:
        self._is_on = False
        if getattr(self._owner, self._name) is self._hook:
            setattr(self._owner, self._name, self._before)

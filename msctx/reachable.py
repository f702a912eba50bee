"""Objects of a kind that live in this process, those that ``gc.freeze()`` has hidden from the garbage collector's lists, too."""

from __future__ import annotations

import gc
import inspect
import sys
import threading
from collections.abc import Iterator
from types import CodeType
from typing import Any, TypeVar

T = TypeVar("T")

OF_THE_FRAME = 3
"""References to a frame's copy of its variables where no program has it, by locals(): the frame's, ours and the one that counts."""


def frozen(kind: type[T]) -> list[T]:
    """What can be reached from modules and from the frames that run; nothing where ``gc.freeze()`` was not called.

    It takes a second or two, since all objects are gone through: nothing shorter finds those that are frozen.
    """
    if not gc.get_freeze_count():
        return []
    found, seen, around = list[T](), set[int](), list[Any]([[*_roots()]])  # no generator: it would find itself, and hold all
    while around:
        further = []
        for one in gc.get_referents(*around):
            if id(one) not in seen:
                seen.add(id(one))
                if gc.is_tracked(one):
                    further.append(one)
                if issubclass(type(one), kind):
                    found.append(one)
        around = further
    return found


def _roots() -> Iterator[Any]:
    yield sys.modules
    is_traced = sys.gettrace() is not None or sys.getprofile() is not None
    own = None if is_traced else threading.get_ident()  # after a trace function, Python takes the variables from the copy
    inner: Any  # there is no other name: this frame would hold itself
    for thread, inner in sys._current_frames().items():
        while inner is not None:
            if inner.f_code.co_filename != __file__:  # what is gone through would hold itself, and with it everything
                variables = inner.f_locals
                yield from [*variables.values()]
                is_copy = inner.f_code.co_flags & inspect.CO_OPTIMIZED and isinstance(variables, dict)
                if thread == own and is_copy and sys.getrefcount(variables) == OF_THE_FRAME:
                    _drop(inner.f_code, variables)
                yield inner.f_globals
            inner = inner.f_back


def _drop(code: CodeType, copy: dict[str, Any]) -> None:
    """Up to Python 3.12 the copy of a function's variables would stay as long as it runs, and with it what they held at this moment.

    What else is in there was put in by exec(), and is nowhere else.
    """
    for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
        copy.pop(name, None)

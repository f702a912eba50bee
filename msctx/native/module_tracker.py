"""The tracker of modules: who wants to know when a module is called, by one pair of torch's global hooks, while somebody does.

No module is changed, nor is a copy, a pickle or a trace of one. It costs nothing while nobody wants to know, and the same for any
number of modules (see docs/reference/limits.md). In compiled code nobody knows of a call: Dynamo traces the hooks to nothing.
"""

from __future__ import annotations

import re
import sys
import threading
import warnings
from collections.abc import Callable
from functools import cache
from types import FrameType
from typing import TYPE_CHECKING, Any

from torch.compiler import is_dynamo_compiling
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from msctx.native import watched_models
from msctx.outside_dynamo import passed_over

if TYPE_CHECKING:
    from torch import nn


class Call:
    """A call of a module that runs.

    Attributes:
        frame: the id of the frame that runs it, which itself would keep its tensors.
        place: where its module is in watched models, if it is.
        leaves: what leaves it, the outermost first: a function, and its argument.
    """

    __slots__ = ("frame", "leaves", "place")  # each is set for itself: an __init__ would take as long as all the rest

    frame: int
    place: watched_models.Place | None
    leaves: list[tuple[Callable[[Any], object], Any]]


Enter = Callable[["nn.Module", Call], object]
"""Called with a module; it first appends what undoes it to the call's ``leaves``, which may be called twice."""


class _Here(threading.local):
    def __init__(self) -> None:
        self.calls: list[Call] = []


here = _Here()
"""``calls``: of modules that run in this thread, the outermost first, as far as somebody wanted to know when they began."""
_lock = threading.Lock()
_clients: dict[Enter, tuple[int, bool]] = {}
"""What is called → its order, and whether it wants to know of modules that no watched model has."""
_enters: list[Enter] = []
"""The same, the outermost first."""
_has_all = False
WHEN_COMPILED: list[Callable[[Any], object]] = []
"""Called by Dynamo where it reads our hook: with what translates the code that calls a module."""
WARNS = r"Using `torch.compile\(module\)` when there are global hooks"
"""Torch's warning that a compiled module and its wrapper are two calls, which all that is called here knows."""
_FILTER = ("ignore", re.compile(WARNS), UserWarning, None, 0)


def turn(enter: Enter, on: bool, order: int = 0, *, all_modules: bool = True) -> None:
    """Whether *enter* is called with each module that is called, or with those of watched models; *order*: 0 is the innermost."""
    global _enters, _has_all
    with _lock:
        _clients.pop(enter, None)
        if on:
            _clients[enter] = order, all_modules
        _enters, _has_all = sorted(_clients, key=lambda one: -_clients[one][0]), any(wants for _, wants in _clients.values())
        _install(bool(_clients))


@cache
def _hooks() -> tuple[tuple[Any, Callable[..., None]], ...]:
    """Always the same, under the same numbers: by both compiled code is guarded."""
    passed_over(_begin, _end)
    return (register_module_forward_pre_hook(_begin), _begin), (register_module_forward_hook(_end, always_call=True), _end)


def _compiled(translator: Any) -> None:
    for one in WHEN_COMPILED:
        one(translator)


def _install(on: bool) -> None:
    """Whether torch calls them."""
    filters: Any = warnings.filters  # not filterwarnings(), after which all that has been said once is said again
    if _FILTER in filters:
        filters.remove(_FILTER)
    if on:
        filters.insert(0, _FILTER)
    for handle, hook in _hooks():
        if not on:
            handle.remove()
            continue
        handle.hooks_dict_ref()[handle.id] = hook
        for others in handle.extra_dict_ref:
            others()[handle.id] = True


def _begin(module: nn.Module, args: Any = ()) -> None:
    """Called by the function that runs the module, and its hooks."""
    if is_dynamo_compiling():  # is_compiling() holds for all threads while one of them compiles
        from torch._dynamo.comptime import comptime

        comptime(_compiled)
        return
    if calls := here.calls:
        drop_ended(sys._getframe(1))
    if (place := watched_models.place_of(module)) is None and not _has_all:
        return
    call = Call()
    call.frame, call.place, call.leaves = id(sys._getframe(1)), place, []
    calls.append(call)  # first: where Ctrl-C ends this, the next call undoes it
    for enter in _enters:
        enter(module, call)


def _end(module: nn.Module, args: Any = (), result: Any = None) -> None:
    if is_dynamo_compiling() or not (calls := here.calls):
        return
    if id(frame := sys._getframe(1)) == calls[-1].frame:
        _leave(calls)
    else:  # of another module, or ended by what it raised
        drop_ended(frame)


def _leave(calls: list[Call]) -> None:
    for leave, argument in reversed(calls[-1].leaves):  # again, if Ctrl-C ends one
        leave(argument)
    calls.pop()


def drop_ended(frame: FrameType | None = None) -> None:
    """Leave the calls that have ended without torch's hook, by Ctrl-C or SystemExit. *frame* is of a call that begins or ends."""
    calls, frame = here.calls, frame or sys._getframe()
    while calls:
        around = frame.f_back
        while around is not None and id(around) != calls[-1].frame:  # found in a few steps, as a rule
            around = around.f_back
        if around is not None:
            return
        _leave(calls)


def inside(module: nn.Module, run: Callable[[], Any]) -> Any:
    """Run what a module is compiled to as a whole: its hooks are in the compiled code."""
    if not _clients:
        return run()
    try:
        _begin(module)
        return run()
    finally:
        _end(module)

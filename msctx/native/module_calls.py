"""The tracker of modules: who wants to know when a module is called, by one pair of torch's global hooks, while somebody does.

No module is changed, nor is a copy, a pickle or a trace of one. It costs nothing while nobody wants to know, and the same for any
number of modules (see docs/limits.md). In compiled code nobody knows of a call: Dynamo traces the hooks to nothing. Where somebody
must know, Dynamo leaves the call to eager code: see :func:`keep_out`.
"""

from __future__ import annotations

import re
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from torch.compiler import is_dynamo_compiling
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from msctx import locks
from msctx.native import watched
from msctx.native.installed import Held

if TYPE_CHECKING:
    from torch import nn


R = TypeVar("R")


class Call:
    """A call of a module that runs.

    Attributes:
        frame: the id of the frame that runs it, which itself would keep its tensors.
        place: where its module is in watched models, if it is.
        leaves: what leaves it, the outermost first.
    """

    __slots__ = ("frame", "leaves", "place")

    def __init__(self, frame: int, place: watched.Place | None) -> None:
        self.frame, self.place = frame, place
        self.leaves: list[Callable[[], object]] = []


Enter = Callable[["nn.Module", Call], object]
"""Called with a module; it first appends what undoes it to the call's ``leaves``, which may be called twice."""


def passed_over(*functions: Any) -> None:
    """Where eager code calls them beside compiled code, Dynamo compiles neither them nor what they call."""
    from torch._C._dynamo import eval_frame as dynamo

    skip = dynamo._FrameAction.SKIP
    for function in functions:
        dynamo.set_code_exec_strategy(function.__code__, dynamo._FrameExecStrategy(skip, skip))


class _Here(threading.local):
    def __init__(self) -> None:
        self.calls: list[Call] = []


_here = _Here()
_lock = locks.plain()
_clients: list[tuple[int, bool, Enter]] = []
"""The outermost first: its order, whether it wants to know of modules that no watched model has, and what is called."""
_has_all = False
WARNS = r"Using `torch.compile\(module\)` when there are global hooks"
"""Torch's warning that a compiled module and its wrapper are two calls, which all that is called here knows."""
_FILTER = ("ignore", re.compile(WARNS), UserWarning, None, 0)


def turn(enter: Enter, on: bool, order: int = 0, *, all_modules: bool = True) -> None:
    """Whether *enter* is called with each module that is called, or with those of watched models; *order*: 0 is the innermost."""
    global _clients, _has_all
    with _lock:
        others = [client for client in _clients if client[2] != enter]
        _clients = sorted([*others, *[(order, all_modules, enter)] * on], key=lambda client: -client[0])
        _has_all = any(all_modules for _, all_modules, _ in _clients)
        _installed.hold(bool(_clients))


@cache
def _hooks() -> tuple[tuple[Any, Callable[..., None]], ...]:
    """Always the same, under the same numbers: by both compiled code is guarded."""

    def before(module: nn.Module, args: Any) -> None:
        if not is_dynamo_compiling():  # is_compiling() holds for all threads while one of them compiles
            _begin(module, 2)
            return
        from torch._dynamo.comptime import comptime

        comptime(_keep_out)

    def after(module: nn.Module, args: Any, result: Any) -> None:
        if not is_dynamo_compiling() and _here.calls:
            _end(sys._getframe(1))

    passed_over(before, after)
    return (register_module_forward_pre_hook(before), before), (register_module_forward_hook(after, always_call=True), after)


def _install() -> Callable[[], None]:
    for handle, hook in _hooks():
        handle.hooks_dict_ref()[handle.id] = hook
        for others in handle.extra_dict_ref:
            others()[handle.id] = True
    filters: Any = warnings.filters  # not filterwarnings(), after which all that has been said once is said again
    filters.insert(0, _FILTER)

    def remove() -> None:
        for handle, _ in _hooks():
            handle.remove()
        with suppress(ValueError):
            filters.remove(_FILTER)

    return remove


_installed = Held(_install)


# --- calls ------------------------------------------------------------------------------------------------------------


def _begin(module: nn.Module, depth: int) -> None:
    """*depth*: how far out the function is that runs the module, and its hooks."""
    calls = _here.calls
    if calls and not _is_around(calls[-1].frame):
        drop_ended(sys._getframe(depth))
    if (place := watched.place_of(module)) is None and not _has_all:
        return
    call = Call(id(sys._getframe(depth)), place)
    calls.append(call)  # first: where Ctrl-C ends this, the next call undoes it
    for _, _, enter in _clients:
        enter(module, call)
    if not call.leaves:
        calls.pop()


def _is_around(frame: int) -> bool:
    """Whether this is the ``forward`` of a module that calls another one, as a rule; searching all frames takes longer."""
    try:
        return id(sys._getframe(7)) == frame
    except ValueError:
        return False


def _end(frame: FrameType) -> None:
    calls, number = _here.calls, id(frame)
    for depth in reversed(range(len(calls))):
        if calls[depth].frame == number:
            _leave(depth)
            return
    if frame.f_code.co_name == "_call_impl":  # after an exception, which has ended the function that ran the module
        drop_ended(frame)


def _leave(depth: int) -> None:
    calls = _here.calls
    while len(calls) > depth:
        for leave in reversed(calls[-1].leaves):  # again, if Ctrl-C ends one
            leave()
        calls.pop()


def drop_ended(frame: FrameType | None = None) -> None:
    """Leave the calls that have ended without torch's hook, by Ctrl-C or SystemExit. *frame* is of a call that begins or ends."""
    calls, inside = _here.calls, frame or sys._getframe()
    while calls:
        number, around = calls[-1].frame, inside.f_back
        while around is not None:  # found in a few steps, as a rule
            if id(around) == number:
                return
            around = around.f_back
        _leave(len(calls) - 1)


def running() -> list[Call]:
    """The calls of modules that run in this thread and that somebody will leave, the outermost first."""
    return _here.calls


def inside(module: nn.Module, run: Callable[[], R]) -> R:
    """Run what a module is compiled to as a whole: its hooks are in the compiled code."""
    if not _clients:
        return run()
    try:
        _begin(module, 1)
        return run()
    finally:
        _end(sys._getframe())


# --- compiled code ----------------------------------------------------------------------------------------------------

IsKeptOut = Callable[["nn.Module"], bool]
_is_kept_out: IsKeptOut | None = None


def keep_out(is_kept_out: IsKeptOut | None) -> None:
    """Dynamo breaks its graph at a call of a module for which *is_kept_out* holds, which runs eagerly, but for a forward pass that
    Dynamo compiles by itself: not that of one of torch's own modules.

    Calls of other modules are in its graphs; these are guarded: it holds for none of the modules that they are called with.
    """
    global _is_kept_out
    _is_kept_out = is_kept_out


def _keep_out(translator: Any) -> None:
    """Called by Dynamo where it reads our hook."""
    from torch._dynamo.guards import install_guard

    variable = translator.get_local("module")._ComptimeVar__variable
    if _is_kept_out is None:
        return
    if _is_kept_out(variable.value):
        translator.graph_break("msctx: rules name this module")
    if variable.source is not None:
        install_guard(variable.source.make_guard(_guard))


def _guard(builder: Any, guard: Any) -> None:
    """Of compiled code: a module that is called in it.

    Under an accessor of its own, for Dynamo may skip guards that lie in a module's dictionary while that is unchanged:
    use_recursive_dict_tags_for_guards, which is on in torch 2.11.
    """
    from torch._dynamo.guards import GuardManagerType

    def is_inside(module: nn.Module) -> bool:
        return _is_kept_out is None or not _is_kept_out(module)

    text = f"no rule of msctx names {guard.name}"
    found = builder.get_guard_manager(guard).lambda_manager(is_inside, text, True, GuardManagerType.GUARD_MANAGER)
    found.add_lambda_guard(bool, [text], guard.user_stack)

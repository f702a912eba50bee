"""The tracker of modules: who wants to know when a module is called, by one pair of torch's global hooks, while somebody does.

No module is changed, nor is a copy, a pickle or a trace of one, and it costs the same for any number of them: about 2 µs a call, and
nothing while nobody wants to know. Dynamo traces the hooks to nothing: in compiled code nobody knows of a call. Where somebody must,
Dynamo leaves the call to eager code: see :func:`keep_out`.
"""

from __future__ import annotations

import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from types import FrameType
from typing import TYPE_CHECKING, Any

from msctx import locks
from msctx.native.installed import Held

if TYPE_CHECKING:
    from torch import nn

Leave = Callable[[], object]
Enter = Callable[["nn.Module", list[Leave]], object]
"""Called with a module, and the list to which it first appends what undoes it."""


def passed_over(*functions: Any) -> None:
    """Where eager code calls them beside compiled code, Dynamo compiles neither them nor what they call."""
    from torch._C._dynamo import eval_frame as dynamo

    skip = dynamo._FrameExecStrategy(dynamo._FrameAction.SKIP, dynamo._FrameAction.SKIP)
    for function in functions:
        dynamo.set_code_exec_strategy(function.__code__, skip)


class _Here(threading.local):
    def __init__(self) -> None:
        self.calls: list[list[Any]] = []
        """Those that run and that somebody will leave, the outermost first: the id of the frame, which itself would keep its tensors,
        and what leaves it."""


_here = _Here()
_lock = locks.plain()
_places: dict[Enter, int] = {}
_enters: tuple[Enter, ...] = ()
WARNS = r"Using `torch.compile\(module\)` when there are global hooks"
"""Torch's warning that a compiled module and its wrapper are two calls, which all that is called here knows."""
_FILTER = ("ignore", re.compile(WARNS), UserWarning, None, 0)


def put(enter: Enter, place: int) -> None:
    """*place*: 0 is the innermost."""
    with _lock:
        _places[enter] = place
        _renew()
        _installed.hold(True)


def take(enter: Enter) -> None:
    with _lock:
        _places.pop(enter, None)  # an interruption may have come in between
        _renew()
        _installed.hold(bool(_places))


def _renew() -> None:
    global _enters
    _enters = tuple(sorted(_places, key=_places.__getitem__, reverse=True))


@cache
def _hooks() -> tuple[Callable[..., None], Callable[..., None], tuple[Any, Any]]:
    """Always the same, under the same numbers: by both compiled code is guarded."""
    from torch.compiler import is_dynamo_compiling
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

    def before(module: nn.Module, args: Any) -> None:
        if not is_dynamo_compiling():  # is_compiling() holds for all threads while one of them compiles
            _begin(module, sys._getframe(2))
            return
        from torch._dynamo.comptime import comptime

        comptime(_keep_out)

    def after(module: nn.Module, args: Any, result: Any) -> None:
        if not is_dynamo_compiling() and _here.calls:
            _end(sys._getframe(1))

    passed_over(before, after)
    handles = register_module_forward_pre_hook(before), register_module_forward_hook(after, always_call=True)
    return before, after, handles


def _install() -> Callable[[], None]:
    before, after, handles = _hooks()
    for handle, hook in zip(handles, (before, after), strict=True):
        hooks: Any = handle.hooks_dict_ref()
        hooks[handle.id] = hook
        for others in handle.extra_dict_ref:
            others()[handle.id] = True
    filters: Any = warnings.filters  # not filterwarnings(), after which all that has been said once is said again
    filters.insert(0, _FILTER)

    def remove() -> None:
        for handle in handles:
            handle.remove()
        with suppress(ValueError):
            filters.remove(_FILTER)

    return remove


_installed = Held(_install)


# --- calls ------------------------------------------------------------------------------------------------------------


def _begin(module: nn.Module, frame: FrameType) -> None:
    """*frame*: of ``nn.Module._call_impl``, in which another function calls the hooks."""
    calls = _here.calls
    if calls:
        drop_ended(frame)
    leaves: list[Leave] = []
    calls.append(call := [0, leaves])  # first: where Ctrl-C ends this, the next call undoes it
    for enter in _enters:
        enter(module, leaves)
    if leaves:
        call[0] = id(frame)
    else:
        calls.pop()


def _end(frame: FrameType) -> None:
    around = frame.f_back  # after an exception ``_call_impl`` itself calls the hooks
    for depth, call in enumerate(_here.calls):
        if call[0] in (id(frame), id(around)):
            _leave(depth)
            return


def _leave(depth: int) -> None:
    calls = _here.calls
    while len(calls) > depth:
        for leave in reversed(calls.pop()[1]):
            leave()


def drop_ended(frame: FrameType | None = None) -> None:
    """Leave the calls that Ctrl-C or SystemExit has ended, for which torch runs no hook. *frame* is of a call that begins."""
    while _here.calls and not _runs(_here.calls[-1][0], (frame or sys._getframe()).f_back):
        _leave(len(_here.calls) - 1)


def _runs(number: int, frame: FrameType | None) -> bool:
    """Whether a frame has called this one; it is found in a few steps, as a rule."""
    while frame is not None and id(frame) != number:
        frame = frame.f_back
    return frame is not None


def depth() -> int:
    """How many calls of modules run in this thread that somebody will leave."""
    return len(_here.calls)


@contextmanager
def entered(module: nn.Module) -> Iterator[None]:
    """A call of a module that is compiled as a whole: its hooks are in the compiled code."""
    if not _enters:
        yield
        return
    frame = sys._getframe()
    try:
        _begin(module, frame)
        yield
    finally:
        _end(frame)


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

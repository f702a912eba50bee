"""Ours around the calls of modules: in the place of the code of ``nn.Module._wrapped_call_impl``, which ``nn.Module.__call__`` is.

No module is changed, nor is a copy, a pickle or a trace of one, and it costs the same for any number of them. The function stays the
same object, so that whoever has kept it, or a module's ``__call__``, or has wrapped that meanwhile, as torch.fx does for all threads,
comes to ours as well.

In compiled code nobody is around a call. One that must be makes Dynamo leave the call to eager code: see :func:`keep_out`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, partial
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

from msctx import locks
from msctx.imports import when_imported
from msctx.native.installed import Held

if TYPE_CHECKING:
    from torch import nn

Call = Callable[..., Any]
Around = Callable[..., Any]
"""Called as ``around(call, module, *args, **kwargs)``, where *call* is what it stands around. Its first two are positional only: a
forward pass may have arguments of any name."""

NAME = "_msctx_call"
"""By which torch.nn.modules.module has ours, from the first time on: another thread may have begun a call that has not come to it."""


class _Torchs(NamedTuple):
    """Torch's function, its own code as another function, and the code that calls ours."""

    function: Any
    own: Any
    call: CodeType


@cache
def _torchs() -> _Torchs:
    from torch import nn

    function: Any = nn.Module._wrapped_call_impl
    while function.__code__.co_freevars and hasattr(function, "__wrapped__"):  # of a library that has wrapped it
        function = function.__wrapped__
    own = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
    own.__kwdefaults__ = function.__kwdefaults__
    made: dict[str, Any] = {}
    exec(f"def _wrapped_call_impl(self, *args, **kwargs):\n    return {NAME}(self, *args, **kwargs)", made)
    found: CodeType = made["_wrapped_call_impl"].__code__
    code = function.__code__
    return _Torchs(function, own, found.replace(co_filename=code.co_filename, co_firstlineno=code.co_firstlineno))


@cache
def _ours() -> Call:
    """Always the same: compiled code knows it again."""
    from torch.compiler import is_dynamo_compiling

    own = _torchs().own

    def our_call(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        if not is_dynamo_compiling():  # is_compiling() holds for all threads while one of them compiles
            return _run(module, *args, **kwargs)
        from torch._dynamo.comptime import comptime

        comptime(_keep_out)
        return own(module, *args, **kwargs)

    keep_from_dynamo(around=our_call)
    return our_call


_lock = locks.plain()
_run: Call
_arounds: dict[Around, int] = {}
"""Those that are there, and which stand around which: 0 is the innermost."""


def _install() -> Callable[[], None]:
    torchs, dynamos = _torchs(), "torch._dynamo.variables.nn_module"
    torchs.function.__globals__[NAME] = _ours()
    torchs.function.__code__ = torchs.call

    def read(is_read: bool) -> None:
        """Dynamo need not read torch's own."""
        vars(sys.modules[dynamos])["unpatched_nn_module_call"] = None if is_read else torchs.function

    stop = when_imported(dynamos, partial(read, True))

    def remove() -> None:
        stop()
        torchs.function.__code__ = torchs.own.__code__
        if dynamos in sys.modules:
            read(False)

    return remove


_installed = Held(_install)


def put(around: Around, place: int) -> None:
    with _lock:
        _arounds[around] = place
        _renew()
        _installed.hold(True)


def take(around: Around) -> None:
    with _lock:
        _arounds.pop(around, None)  # an interruption may have come in between
        _renew()
        _installed.hold(bool(_arounds))


def _renew() -> None:
    global _run
    run: Call = _torchs().own
    for around in sorted(_arounds, key=_arounds.__getitem__):
        run = partial(around, run)
    _run = run


# --- compiled code ----------------------------------------------------------------------------------------------------

IsKeptOut = Callable[["nn.Module"], bool]
_is_kept_out: IsKeptOut | None = None


def keep_out(is_kept_out: IsKeptOut | None) -> None:
    """Dynamo breaks its graph at a call of a module for which *is_kept_out* holds, and what the call runs is compiled for itself.

    Calls of other modules are in its graphs; these are guarded: it holds for none of the modules that they are called with.
    """
    global _is_kept_out
    _is_kept_out = is_kept_out


def _keep_out(translator: Any) -> None:
    """Called by Dynamo where it reads our call."""
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


def keep_from_dynamo(*functions: Callable[..., Any], around: Around | None = None) -> None:
    """Where eager code calls them beside compiled code, Dynamo would compile them, too: to nothing, or it fails at their code.

    What *functions* call is kept from it, too; what *around* calls is not.
    """
    from torch._C._dynamo import eval_frame as dynamo

    skip, default = dynamo._FrameAction.SKIP, dynamo._FrameAction.DEFAULT
    for function in functions:
        dynamo.set_code_exec_strategy(function.__code__, dynamo._FrameExecStrategy(skip, skip))
    if around is not None:
        dynamo.set_code_exec_strategy(around.__code__, dynamo._FrameExecStrategy(skip, default))

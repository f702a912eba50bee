"""Ours around the calls of modules, in the place of ``nn.Module.__call__``: no module is changed, nor is a copy, a pickle or a trace
of one, and it costs the same for any number of them.

In compiled code nobody is around a call. One that must be makes Dynamo leave the call to eager code: see :func:`keep_out`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, partial, wraps
from typing import TYPE_CHECKING, Any

from msctx import locks
from msctx.imports import when_imported
from msctx.native.installed import Held

if TYPE_CHECKING:
    from torch import nn

Call = Callable[..., Any]
Around = Callable[..., Any]
"""Called as ``around(call, module, *args, **kwargs)``, where *call* is what it stands around; not while code is being compiled."""


class _Ours:
    """What stands in the place of one that was found: made once, so that compiled code knows it again."""

    def __init__(self, found: Call) -> None:
        from torch.compiler import is_compiling, is_dynamo_compiling

        self.found = self.run = found

        def our_call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not is_compiling():
                return self.run(module, *args, **kwargs)
            if is_dynamo_compiling() and kept_out >= 0:
                from torch._dynamo.comptime import comptime

                comptime(_keep_out)
            return found(module, *args, **kwargs)

        keep_from_dynamo(around=our_call)
        self.call = wraps(found)(our_call)


_lock = locks.plain()
_ours = cache(_Ours)
_now: _Ours | None = None
_arounds: dict[Around, int] = {}
"""Those that are there, and which stand around which: 0 is the innermost."""


def _install() -> Callable[[], None]:
    from torch import nn

    global _now
    _now = our = _ours(nn.Module.__call__)

    def tell() -> None:
        """Dynamo takes what it finds for torch's own, which it need not read."""
        vars(sys.modules["torch._dynamo.utils"])["unpatched_nn_module_call"] = our.found

    stop = when_imported("torch._dynamo.utils", tell) if "torch._dynamo.utils" not in sys.modules else lambda: None
    nn.Module.__call__ = our.call  # type: ignore[method-assign]

    def remove() -> None:
        global _now
        _now, our.run = None, our.found
        stop()
        if nn.Module.__call__ is our.call:  # else somebody has wrapped it meanwhile
            nn.Module.__call__ = our.found  # type: ignore[method-assign]

    return remove


_installed = Held(_install)


def put(around: Around, place: int) -> None:
    with _lock:
        _arounds[around] = place
        _installed.want(1)
        _renew()


def take(around: Around) -> None:
    with _lock:
        del _arounds[around]
        _renew()
        _installed.release(1)


def _renew() -> None:
    if _now is not None:
        run = _now.found
        for around in sorted(_arounds, key=_arounds.__getitem__):
            run = partial(around, run)
        _now.run = run


# --- compiled code ----------------------------------------------------------------------------------------------------

kept_out = 0
"""Compiled code is guarded by it: see :func:`changed`."""
_is_kept_out: Callable[[nn.Module], bool] = lambda module: False  # noqa: E731


def keep_out(is_kept_out: Callable[[nn.Module], bool]) -> None:
    """Dynamo breaks its graph at a call of a module for which *is_kept_out* holds, and what the call runs is compiled for itself."""
    global _is_kept_out
    _is_kept_out = is_kept_out


def changed() -> None:
    """Code has been compiled with a call inside that is to be kept out from now on: it is compiled anew."""
    global kept_out
    kept_out += 1


def _keep_out(translator: Any) -> None:
    """Called by Dynamo where it reads our call."""
    if _is_kept_out(translator.get_local("module")._ComptimeVar__variable.value):
        translator.graph_break("msctx: rules name this module")


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

"""Which calls are compiled: the outermost call of each module in GRAPH_MODE, and functions of :func:`jit`."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import types
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

import torch
from torch import nn
from torch.compiler import is_compiling

from msctx.errors import GraphError, text_of
from msctx.graph import backend, input_shapes, report
from msctx.native import module_tracker
from msctx.native.counter_lifetimes import MET
from msctx.notices import warn
from msctx.options.switch_values import Compilation
from msctx.outside_dynamo import passed_over

F = TypeVar("F", bound=Callable[..., Any])

compilation: Compilation | None = None
"""What the options come to; None: no option of graph mode is in force."""
VARIANTS = 32
"""How often one function or class of modules is compiled for other inputs before it runs eagerly."""
IN_TRANSFORM = (
    "mode=GRAPH_MODE: torch.func.{transform} calls {name}, and torch.compile cannot compile what a transform calls from eager code. "
    "These calls run eagerly. To compile them, call torch.func.{transform} inside a function of msctx.jit; jit_syntax_level='STRICT' "
    "makes them an error."
)
CALL = "_compiled_call_impl"
"""Where torch looks for the compiled form of a module that is called."""


class _Here(threading.local):
    depth = 0


_here = _Here()


def outermost(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    """In place of ``nn.Module._compiled_call_impl``: the outermost module that is called, and is not yet compiled, is.

    A module that the program has compiled by itself (``module.compile()``) has that in its own dictionary, where torch looks first.
    """
    if is_compiling() or (_here.depth and not _is_passed_over(module)) or not _is_alone(module):
        return module._call_impl(*args, **kwargs)
    return _call_module(module, *args, **kwargs)


def _is_passed_over(module: nn.Module) -> bool:
    """Whether Dynamo, which has given up the code that calls it, would not capture it either: torch's own containers."""
    return type(module).__module__.startswith("torch.nn.modules") and next(module.children(), None) is not None


def _is_alone(module: nn.Module) -> bool:
    """Whether nothing else traces or has compiled it, and it is no transform in a data loader's worker."""
    if torch.jit.is_tracing() or isinstance(module, torch.jit.ScriptModule | torch.fx.GraphModule):  # type: ignore[attr-defined]
        return False
    if torch.utils.data.get_worker_info() is not None:
        return False
    tracer = sys.modules.get("torch.fx._symbolic_trace")
    return tracer is None or not tracer._is_fx_tracing_flag


def _call_module(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    frames = sys.modules.get("torch._dynamo.eval_frame")
    if frames is not None and isinstance(module, frames.OptimizedModule):
        return _inside(module._call_impl, *args, **kwargs)
    if backend.is_of_before():
        forget()
    wanted, kind = compilation or Compilation(), type(module)
    known = _made.setdefault(kind, {})
    if wanted not in known:  # each class has its own code: Dynamo keeps and counts what it compiled by code
        name = report.name(kind)
        known[wanted] = Forms(types.FunctionType(_forward.__code__.replace(co_name=name), globals(), name), wanted)
    outer, backend.here.module = backend.here.module, module
    try:
        return module_tracker.inside(module, functools.partial(_run_shaped, known[wanted], wanted, module, args, kwargs))
    finally:
        backend.here.module = outer


def _forward(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    """A frame that Dynamo captures: it passes over those of torch's own modules."""
    return module._call_impl(*args, **kwargs)


class Forms:
    """What a class of modules or a function is compiled to under one policy.

    Attributes:
        compiled: what is called.
        eager: what it is made of.
    """

    def __init__(self, function: Callable[..., Any], wanted: Compilation) -> None:
        how: dict[str, Any] = {"backend": backend.backend(wanted), "dynamic": wanted.shapes.dynamic}
        how["options"] = {"guard_filter_fn": backend.needed}
        if "recompile_limit" in inspect.signature(torch.compile).parameters:  # torch 2.11: Dynamo's own limit holds
            how["recompile_limit"] = VARIANTS + len(wanted.shapes.gears)
        self.eager = function
        self.name = getattr(function, "__name__", type(function).__name__)
        self.compiled = torch.compile(function, fullgraph=wanted.whole or wanted.only, **how)


_made: weakref.WeakKeyDictionary[type[nn.Module], dict[Compilation, Forms]] = weakref.WeakKeyDictionary()
"""Class of modules → its compiled forms."""


def _run_shaped(forms: Forms, wanted: Compilation, what: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a module or a function. Where options have shapes, the inputs must have them."""
    MET["call"] += 1
    first, function = ((what,), what.forward) if isinstance(what, nn.Module) else ((), what)
    transform = torch._C._functorch.peek_interpreter_stack()  # in which Dynamo gives up for good the code that it meets
    if transform is not None and not (wanted.whole or wanted.only):  # there its refusal is an error, or a warning
        warn(IN_TRANSFORM.format(transform=transform.key().name.lower(), name=forms.name))
        return _inside(forms.eager, *first, *args, **kwargs)
    has_shapes = (wanted.shapes.gears or wanted.shapes.ranges) and not _here.depth  # they are those of the outermost model
    if not has_shapes or (first and next(what.parameters(), None) is None):  # a loss
        return _call(forms, wanted, *first, *args, **kwargs)
    name = getattr(what, "__qualname__", type(what).__qualname__)
    with input_shapes.of_shape(wanted.shapes, name, input_shapes.named(function, args, kwargs)):
        return _call(forms, wanted, *first, *args, **kwargs)


def _call(forms: Forms, wanted: Compilation, /, *args: Any, **kwargs: Any) -> Any:
    """Run it. What Dynamo raises while it captures, before anything has run, is found out by eager code: it may be the program's."""
    try:
        return _inside(forms.compiled, *args, **kwargs)
    except backend.Compiled:
        return None
    except Exception as error:
        refusal = _refusal(forms, error)
        if refusal is None and (wanted.only or not report.is_of_capture(error)):
            raise
        if wanted.only:
            warn(f"precompile_only: {refusal}. What cannot be captured as a whole is not compiled ahead.")
            return None
        raised, found = error, refusal or report.parse(text_of(error))
    # here, where torch's exceptions are not chained to it
    if refusal is None or getattr(raised, "gb_type", "") in report.RAISES:
        result = _inside(forms.eager, *args, **kwargs)
    if wanted.whole or refusal is not None:
        raise GraphError.of(found.where, found.reason, found.hints) from raised
    warn(f"mode=GRAPH_MODE: {found}. This call runs eagerly; jit_syntax_level='STRICT' makes it an error.")
    return result


def _refusal(forms: Forms, error: Exception) -> report.Break | None:
    """Why Dynamo does not capture it; None: the exception is another one."""
    if isinstance(error, torch._dynamo.exc.FailOnRecompileLimitHit):
        reasons = ("ctx.graphs().recompiled has the reason for each variant",)
        return report.Break(forms.name, "it needs more variants than are compiled of one function or class", reasons)
    return report.parse(text_of(error)) if isinstance(error, torch._dynamo.exc.Unsupported) else None


def _inside(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call it, and compile no module by itself that it calls."""
    _here.depth += 1
    try:
        return function(*args, **kwargs)
    finally:
        _here.depth -= 1


# they run between what Dynamo captures; compiled code switches Dynamo on again
passed_over(outermost, also_inside=False)
passed_over(_is_passed_over, _is_alone, _call_module, _run_shaped, _call, _inside)


def found() -> Any:
    return vars(nn.Module)[CALL]


def put_back(value: Any) -> None:
    setattr(nn.Module, CALL, value)


def forget() -> None:
    """Compile each class of modules anew: Dynamo distinguishes back ends."""
    backend.forget()
    for known in [*_made.values()]:
        known.update({wanted: Forms(forms.eager, wanted) for wanted, forms in known.items()})


def jit(function: F) -> F:
    """Compile a function by torch.compile, under the options of graph mode that are in force at each call.

    ``jit_syntax_level="STRICT"`` makes what cannot be captured an error; else it runs eagerly, and :meth:`Context.graphs` lists it
    with file, line and what to change. Under ``mode="PYNATIVE_MODE"`` the function runs eagerly.

    Raises:
        TypeError: for modules, which ``mode="GRAPH_MODE"`` compiles, and what cannot be called.
        GraphError: at a call, where STRICT forbids what the function does.
    """
    return jit_as(function, lambda wanted: wanted)


def jit_as(function: F, own: Callable[[Compilation], Compilation], *, in_pynative_mode: bool = False) -> F:
    """:func:`jit`; *own* changes what the options in force come to."""
    if isinstance(function, nn.Module) or not callable(function):
        raise TypeError(
            f"jit takes functions, not {type(function).__name__}; mode='GRAPH_MODE' compiles the modules that are called"
        )

    known: dict[Compilation, Forms] = {}

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if is_compiling() or _here.depth:
            return function(*args, **kwargs)
        report.listen("jit", True)
        wanted = own(compilation or Compilation())
        if wanted not in known:
            known[wanted] = Forms(function, wanted)
        with torch.compiler.set_stance("default") if in_pynative_mode else nullcontext():
            return _run_shaped(known[wanted], wanted, function, args, kwargs)

    return call  # type: ignore[return-value]

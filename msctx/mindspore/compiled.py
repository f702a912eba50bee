"""``ms.jit`` of MindSpore, by torch.compile."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from msctx.options.policies import Compilation

LEVELS = {"O0": False, "O1": True, "O2": True}
"""jit_level → whether operators are fused."""
LEFT = ("capture_mode", "backend", "mode", "input_signature", "hash_args", "jit_config", "compile_once")
"""What says how MindSpore reads a program, and to which of its back ends it gives it."""


def jit(
    function: Callable[..., Any] | None = None,
    *,
    jit_level: str = "",
    dynamic: int = 0,
    fullgraph: bool = False,
    **options: Any,
) -> Any:
    """Compile a function, in GRAPH_MODE and in PYNATIVE_MODE alike, as MindSpore's ``jit`` does.

    Of a module, the result is a function that runs its compiled call, hooks included.

    Args:
        jit_level: ``"O0"`` runs an operator at a time; ``"O1"`` and ``"O2"`` fuse them; ``""``: what the context says.
        dynamic: 1 compiles for any shapes.
        fullgraph: what cannot be captured is an error.
        options: what concerns MindSpore's own compiler alone, such as ``capture_mode`` and ``backend``, has no effect.

    Raises:
        ValueError, TypeError: a word or a type that MindSpore does not take.
    """
    from torch import nn

    from msctx.graph import calls

    if unknown := [name for name in options if name not in LEFT]:
        raise TypeError(f"jit() got an unexpected keyword argument {unknown[0]!r}")
    if jit_level not in ("", *LEVELS):
        raise ValueError(f"For 'jit', the parameter 'jit_level' must be one of ['O0', 'O1', 'O2'], but got {jit_level}.")
    if type(dynamic) is not int or dynamic not in (0, 1):
        raise ValueError(f"For 'jit', the parameter 'dynamic' must be 0 or 1, but got {dynamic}.")
    if type(fullgraph) is not bool:
        raise TypeError(f"For 'jit', the parameter 'fullgraph' must be bool, but got {type(fullgraph).__name__}.")
    if function is None:
        return functools.partial(jit, jit_level=jit_level, dynamic=dynamic, fullgraph=fullgraph, **options)
    if not callable(function):
        raise TypeError(f"For 'jit', the parameter 'function' must be a function, but got {type(function).__name__}.")

    def own(wanted: Compilation) -> Compilation:
        shapes = replace(wanted.shapes, dynamic=True) if dynamic else wanted.shapes
        fused = LEVELS[jit_level] if jit_level else wanted.fused
        return replace(wanted, whole=wanted.whole or fullgraph, shapes=shapes, fused=fused)

    called = _call_of(function) if isinstance(function, nn.Module) else function
    return calls.jit_as(called, own, in_pynative_mode=True)


def _call_of(module: Callable[..., Any]) -> Callable[..., Any]:
    """Dynamo passes over the call that PyTorch gives modules, but not over a function that calls one."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return module(*args, **kwargs)

    name = type(module).__name__
    code = call.__code__.replace(co_name=name)  # of its own: Dynamo keeps and counts what it compiled by code
    named = types.FunctionType(code, globals(), name, None, call.__closure__)
    named.__qualname__ = name
    return named

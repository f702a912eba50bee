"""Keeps functions outside Dynamo's tracing without importing Dynamo, which takes a second.

A with-block that Dynamo traced would leak its settings. ``torch.compiler.disable`` would do, but loads Dynamo. Dynamo asks a
function for the two attributes set here; and only once it is loaded need its own evaluation of frames be switched off.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

REASON = "a msctx context cannot be entered or changed inside compiled code: put the with-block around the call of the function"

_disabled: dict[Any, Any] = {}


def untraced(function: F) -> F:
    """Dynamo breaks the graph at a call of *function*, and under ``fullgraph=True`` raises with our reason."""
    marked: Any = function
    marked._torchdynamo_disable = True
    marked._torchdynamo_disable_msg = REASON
    return function


@untraced
def call_outside(function: Callable[..., R], /, *args: Any, **kwargs: Any) -> R:
    """Call *function* with Dynamo's evaluation of frames switched off."""
    if (dynamo := sys.modules.get("torch._dynamo")) is None or not hasattr(dynamo, "disable"):
        return function(*args, **kwargs)
    if function not in _disabled:
        _disabled[function] = dynamo.disable(function, reason=REASON, wrapping=False)
    outside: Callable[..., R] = _disabled[function]
    return outside(*args, **kwargs)


def outside_dynamo(function: Callable[P, R]) -> Callable[P, R]:
    """A function that always runs outside Dynamo."""

    @untraced
    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return call_outside(function, *args, **kwargs)

    return call

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


def untraced(function: F) -> F:
    """Dynamo breaks the graph at a call of *function*, and under ``fullgraph=True`` raises with our reason."""
    marked: Any = function
    marked._torchdynamo_disable = True
    marked._torchdynamo_disable_msg = REASON
    return function


def _without_frames(function: Callable[P, R]) -> Callable[P, R] | None:
    """*function* with Dynamo's evaluation of frames switched off; None: Dynamo is not loaded."""
    if (dynamo := sys.modules.get("torch._dynamo")) is None or not hasattr(dynamo, "disable"):
        return None
    disabled: Callable[P, R] = dynamo.disable(function, reason=REASON, wrapping=False)
    return disabled


def outside_dynamo(function: Callable[P, R]) -> Callable[P, R]:
    """A function that always runs outside Dynamo."""
    outside: Callable[P, R] | None = None

    @untraced
    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal outside
        if outside is None:
            outside = _without_frames(function)
        return (outside or function)(*args, **kwargs)

    return call

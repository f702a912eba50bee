"""Keeps a function outside Dynamo's tracing without importing Dynamo, which takes a second."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

REASON = "a msctx context cannot be entered or changed inside compiled code: put the with-block around the call of the function"


def outside_dynamo(function: Callable[P, R]) -> Callable[P, R]:
    """Run *function* uncompiled. Dynamo breaks the graph there, and under ``fullgraph=True`` raises with our reason.

    A with-block that Dynamo traced would leak its settings. ``torch.compiler.disable`` would do, but loads Dynamo; Dynamo
    asks for the two attributes set here, and only once it is loaded need its own evaluation of frames be switched off.
    """
    disabled: list[Callable[P, R]] = []

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if (dynamo := sys.modules.get("torch._dynamo")) is None or not hasattr(dynamo, "disable"):
            return function(*args, **kwargs)
        if not disabled:
            disabled.append(dynamo.disable(function, reason=REASON, wrapping=False))
        return disabled[0](*args, **kwargs)

    marked: Any = call
    marked._torchdynamo_disable = True
    marked._torchdynamo_disable_msg = REASON
    return call

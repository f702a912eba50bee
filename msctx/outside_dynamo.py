"""Keeps functions outside Dynamo's tracing without importing Dynamo, which takes a second.

A with-block that Dynamo traced would leak its settings. ``torch.compiler.disable`` would do, but loads Dynamo. Dynamo asks a
function for the two attributes set here; and only once it is loaded need its own evaluation of frames be switched off.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

from msctx.import_hooks import when_imported

F = TypeVar("F", bound=Callable[..., Any])

REASON = "a msctx context cannot be entered or changed inside compiled code: put the with-block around the call of the function"


def untraced(function: F) -> F:
    """Dynamo breaks the graph at a call of *function*, and under ``fullgraph=True`` raises with our reason."""
    marked: Any = function
    marked._torchdynamo_disable = True
    marked._torchdynamo_disable_msg = REASON
    return function


def passed_over(*functions: Any, also_inside: bool = True) -> None:
    """Where eager code calls them beside compiled code, Dynamo does not compile them, nor with *also_inside* what they call."""
    frames = sys.modules["torch"]._C._dynamo.eval_frame
    skip, default = frames._FrameAction.SKIP, frames._FrameAction.DEFAULT
    for function in functions:
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip if also_inside else default))


def outside_dynamo(function: F) -> F:
    """It always runs outside Dynamo. Compiled code that it calls is Dynamo's again."""
    when_imported("torch._dynamo", lambda: passed_over(function))
    return untraced(function)

"""Exceptions of the program that come out of compiled code otherwise than out of eager code, or do not name the option."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import CodeType
from typing import Any

from msctx.errors import GraphError, MsctxError, text_of

NOTHING_RAN = (
    "precompile_only=True compiles what is called and runs nothing. So the call returned None, and the program cannot go on with "
    "that. To compile a loss as well, put it into one module, or one function of msctx.jit, with the model; or end the program after "
    "the first call."
)
ONCE_ONLY = (
    "mode=GRAPH_MODE: compiled code has first derivatives only, and a second one was requested (create_graph=True). Where you need "
    "it, call the model inside msctx.context(mode='PYNATIVE_MODE'); the rest may stay compiled."
)
RAISES = {"Observed exception", "TypeError when making fake tensor call", "Tensor device mismatch"}
"""What Dynamo calls code that raises in eager mode, too, most often."""
_CAPTURES = os.path.join("torch", "_dynamo", "convert_frame.py")


def explained(error: BaseException | None, get: Callable[[str], Any]) -> MsctxError | None:
    """What an exception means that leaves a scope or a run, where an option is why; *get* has the options' values."""
    if not isinstance(error, Exception) or isinstance(error, MsctxError):
        return None
    if "not currently support double backward" in text_of(error):
        return GraphError(ONCE_ONLY)
    return GraphError(NOTHING_RAN) if "NoneType" in text_of(error) and get("precompile_only") else None


def is_of_capture(error: Exception) -> bool:
    """Whether Dynamo raised while it captured, and nothing of the program had run: no frame lies between ours and Dynamo's."""
    from torch._dynamo.exc import BackendCompilerFailed

    if isinstance(error, MsctxError | Warning | BackendCompilerFailed):
        return False
    trace = error.__traceback__
    while trace is not None and _is_ours(trace.tb_frame.f_code):
        trace = trace.tb_next
    while trace is not None and os.path.basename(trace.tb_frame.f_code.co_filename) == "eval_frame.py":
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename.endswith(_CAPTURES)


def _is_ours(code: CodeType) -> bool:
    """Not those that Dynamo captures: they have names of the program."""
    return os.path.dirname(code.co_filename) == os.path.dirname(__file__) and code.co_name.startswith("_")

"""The drop-in face for people who come from MindSpore: ``import msctx.mindspore as ms``.

MindSpore's names and exceptions; what is set here is msctx's, and shows in ``msctx.explain`` and ``msctx.current``.
:func:`msctx.reset_context` takes everything back, and lets what can be set only once be set again.
"""

from typing import Any

from msctx.mindspore import common, context, device_context, runtime
from msctx.mindspore.absent_names import OF_TOP as _OF_TOP
from msctx.mindspore.absent_names import no_attribute as _no_attribute
from msctx.mindspore.context import COMPATIBLE, GRAPH_MODE, LAX, PYNATIVE_MODE, STRICT, get_context, set_context
from msctx.mindspore.top_level_functions import (
    get_current_device,
    get_seed,
    jit,
    manual_seed,
    set_deterministic,
    set_device,
    set_recursion_limit,
    set_seed,
)

globals().update(_OF_TOP)

__all__ = [
    "COMPATIBLE",
    "GRAPH_MODE",
    "LAX",
    "PYNATIVE_MODE",
    "STRICT",
    "common",
    "context",
    "device_context",
    "get_context",
    "get_current_device",
    "get_seed",
    "jit",
    "manual_seed",
    "runtime",
    "set_context",
    "set_deterministic",
    "set_device",
    "set_recursion_limit",
    "set_seed",
    *_OF_TOP,
]


def __getattr__(name: str) -> Any:
    """msctx's own functions of these names: they load torch."""
    if name in ("parse_print", "set_dump"):
        import msctx

        return getattr(msctx, name)
    return _no_attribute(__name__, name)

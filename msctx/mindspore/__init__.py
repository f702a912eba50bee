"""The drop-in face for people who come from MindSpore: ``import msctx.mindspore as ms``.

MindSpore's names, values and exceptions; what is set here is msctx's, and shows in ``msctx.explain`` and ``msctx.current``.
:func:`msctx.reset_context` takes everything back, and lets what can be set only once be set again.
"""

from msctx.mindspore import context, device_context, runtime
from msctx.mindspore.absent import OF_TOP as _OF_TOP
from msctx.mindspore.absent import names as _names
from msctx.mindspore.compiled import jit
from msctx.mindspore.context import COMPATIBLE, GRAPH_MODE, LAX, PYNATIVE_MODE, STRICT, get_context, set_context
from msctx.mindspore.device import (
    get_current_device,
    get_seed,
    set_deterministic,
    set_device,
    set_recursion_limit,
    set_seed,
)
from msctx.mindspore.dumps import set_dump
from msctx.mindspore.prints import parse_print

globals().update(_OF_TOP)

__all__ = [
    "COMPATIBLE",
    "GRAPH_MODE",
    "LAX",
    "PYNATIVE_MODE",
    "STRICT",
    "context",
    "device_context",
    "get_context",
    "get_current_device",
    "get_seed",
    "jit",
    "parse_print",
    "runtime",
    "set_context",
    "set_deterministic",
    "set_device",
    "set_dump",
    "set_recursion_limit",
    "set_seed",
    *_OF_TOP,
]

__getattr__ = _names(__name__, __all__)

"""The drop-in face for people who come from MindSpore: ``import msctx.mindspore as ms``.

MindSpore's names, values and exceptions; what is set here is msctx's, and shows in ``msctx.explain`` and ``msctx.current``.
:func:`msctx.reset_context` takes everything back, and lets what can be set only once be set again.
"""

from msctx.mindspore import context, device_context, runtime
from msctx.mindspore.absent import (
    JitConfig,
    ParallelMode,
    Tensor,
    get_auto_parallel_context,
    get_offload_context,
    get_ps_context,
    jit,
    nn,
    ops,
    reset_auto_parallel_context,
    reset_ps_context,
    set_auto_parallel_context,
    set_offload_context,
    set_ps_context,
)
from msctx.mindspore.absent import names as _names
from msctx.mindspore.context import COMPATIBLE, GRAPH_MODE, LAX, PYNATIVE_MODE, STRICT, get_context, set_context
from msctx.mindspore.device import (
    get_current_device,
    get_seed,
    set_deterministic,
    set_device,
    set_recursion_limit,
    set_seed,
)

__all__ = [
    "COMPATIBLE",
    "GRAPH_MODE",
    "LAX",
    "PYNATIVE_MODE",
    "STRICT",
    "JitConfig",
    "ParallelMode",
    "Tensor",
    "context",
    "device_context",
    "get_auto_parallel_context",
    "get_context",
    "get_current_device",
    "get_offload_context",
    "get_ps_context",
    "get_seed",
    "jit",
    "nn",
    "ops",
    "reset_auto_parallel_context",
    "reset_ps_context",
    "runtime",
    "set_auto_parallel_context",
    "set_context",
    "set_deterministic",
    "set_device",
    "set_offload_context",
    "set_ps_context",
    "set_recursion_limit",
    "set_seed",
]

__getattr__ = _names(__name__, dict.fromkeys(__all__))

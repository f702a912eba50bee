"""One context for how PyTorch executes: MindSpore's context options, in PyTorch, and restored on exit with few exceptions."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from msctx.import_hooks import collected_later

with collected_later():
    from msctx._version import __version__
    from msctx.context import context, current, explain, get_context, reset_context, set_context
    from msctx.errors import (
        DeviceError,
        GradientError,
        GraphError,
        MsctxError,
        MsctxWarning,
        NativeError,
        OptionError,
        ScopeError,
        StrictError,
    )
    from msctx.state_and_environment import diff, state

if TYPE_CHECKING:
    from msctx.graph.grad_and_value_and_grad import grad as grad
    from msctx.graph.grad_and_value_and_grad import value_and_grad as value_and_grad
    from msctx.graph.graph_mode import jit as jit
    from msctx.graph.report import Graphs
    from msctx.native.computed_precisions import Precisions
    from msctx.native.policy_and_choices import Choices

__all__ = [
    "DeviceError",
    "GradientError",
    "GraphError",
    "MsctxError",
    "MsctxWarning",
    "NativeError",
    "OptionError",
    "ScopeError",
    "StrictError",
    "__version__",
    "choices",
    "context",
    "current",
    "diff",
    "empty_cache",
    "explain",
    "get_context",
    "grad",
    "graphs",
    "jit",
    "memory_stats",
    "precisions",
    "reset_context",
    "set_context",
    "state",
    "step",
    "value_and_grad",
]


def choices() -> Choices:
    """Which algorithm each convolution of this process ran, under any context or setting that requested one, and why."""
    from msctx.native import policy_and_choices

    return policy_and_choices.rows()


def precisions() -> Precisions:
    """In which dtype each operator of this process computed under a precision policy, and by which option."""
    from msctx.native import computed_precisions

    return computed_precisions.of_process()


def graphs() -> Graphs:
    """What was compiled in this process while options were in force, and by functions of :func:`jit`."""
    from msctx.graph import report

    return report.of_process()


def step() -> None:
    """Mark the end of a step of training for observers, such as ``profiling_mode``; without one it does nothing.

    ``optimizer.step()`` ends steps, too. From the first call of this function on, only it does.
    """
    from msctx.observers import steps

    steps.advance()


def memory_stats() -> dict[str, Any]:
    """The host memory that was counted, and each cap on it: bytes and counts by name, as torch.cuda.memory_stats has for a GPU.

    ``current_bytes`` and ``peak_bytes`` are what tensors requested, ``idle_bytes`` is what is kept for the next ones. ``caps`` has
    the same for each cap that is open, so that a context around a phase, with ``max_device_memory``, measures its peak.
    ``parameters`` shows where those of watched models are and how many had to be left. ``recomputed`` has a row for each block of
    models that were watched under ``memory_optimize_level="O1"``: the bytes that its forward pass saves, whether its last call is
    recomputed, and why.
    """
    from msctx.memory import parameter_placement, recompute
    from msctx.native import memory

    of_models = {"parameters": parameter_placement.placed(), "recomputed": recompute.decisions()}
    return memory.statistics() | of_models


def empty_cache() -> int:
    """Free the host memory that is kept for the next tensors; returns how many bytes.

    Idle workspace and what was made of weights that are gone go, too.
    """
    from msctx.native import memory

    return memory.empty_cache()


_LATER = {
    **dict.fromkeys(("device_context", "mindspore", "run", "runtime"), ""),
    **dict.fromkeys(("get_current_device", "set_device", "set_deterministic", "set_recursion_limit"), "setter_functions"),
    "Print": "observers.printing",
    "grad": "graph.grad_and_value_and_grad",
    "jit": "graph.graph_mode",
    "parse_print": "observers.printing",
    "session": "context.session_run",
    "set_dump": "observers.dump",
    "value_and_grad": "graph.grad_and_value_and_grad",
}
"""A public name → its file; ``""``: it is one."""


def __getattr__(name: str) -> Any:
    """What few programs need, loaded when it is first requested.

    ``msctx.run``, for scripts that log to the run they are part of; MindSpore's newer vocabulary; its drop-in face; ``Print``.
    """
    if name not in _LATER:
        raise AttributeError(f"module 'msctx' has no attribute {name!r}")
    found = import_module(f"msctx.{_LATER[name] or name}")
    return getattr(found, name) if _LATER[name] else found


def __dir__() -> list[str]:
    return sorted({*__all__, *_LATER})


if "MSCTX_PLAN" in os.environ:
    from msctx.at_start import torch_first

    torch_first()

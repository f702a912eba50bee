"""Switches of watched models: where parameters and activations are, what is computed again, and when ranks communicate."""

from __future__ import annotations

from typing import Any

from msctx.switches.base import Switch, reading, writing


def _model(name: str, place: str, *of: str, unwritten: Any = None) -> Switch:
    """*place*: a module of msctx/memory with the functions ``read`` and ``write``, called with *of*."""
    module = f"msctx.memory.{place}"
    return Switch(name=name, read=reading(f"{module}:read", unwritten, *of), write=writing(f"{module}:write", unwritten, *of))


SWITCHES = (
    Switch(
        name="models.saved_on_host",
        read=reading("msctx.memory.offload:is_on", False, "activations"),
        write=writing("msctx.memory.offload:turn", False, "activations"),
        scope="thread",
    ),
    _model("models.parameters", "parameters"),
    Switch(
        name="models.copies_of_parameters",
        read=reading("msctx.memory.parameters:copies", False),
        write=writing("msctx.memory.parameters:copy_for_operators", False),
        scope="thread",
    ),
    _model("models.weight_format", "weight_format"),
    _model("models.recompute", "recompute", unwritten=False),
    _model("models.gradients_postponed", "reductions", "postponed", unwritten=False),
    _model("models.gradients_bundled", "reductions", "bundled", unwritten=False),
    _model("models.gathered_ahead_forward", "prefetch", "forward"),
    _model("models.gathered_ahead_backward", "prefetch", "backward"),
)

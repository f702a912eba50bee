"""Graph mode: which code is compiled, and how."""

from __future__ import annotations

from typing import Any

from msctx.effects.base import Outcome, Want, approximated, effect, honoured, not_built
from msctx.options.graph import Compilation
from msctx.options.option import ASCEND

STRICT, LAX = 0, 2
ALONE = "for functions of msctx.jit alone: without mode=GRAPH_MODE modules run eagerly"


def compilation(want: Want) -> Compilation:
    """What all options of graph mode come to together."""
    return Compilation(
        whole=want.other("jit_syntax_level", LAX) == STRICT,
        fused=want.other("enable_graph_kernel"),
        only=bool(want.other("precompile_only")),
    )


def _compiled(want: Want, more: dict[str, Any] | None = None, reason: str = "") -> Outcome:
    if want.device == "ascend":
        return not_built(ASCEND)
    found = {"graph.compilation": compilation(want)} | (more or {})
    alone = "" if want.other("mode") == 0 else ALONE
    return honoured(found, "; ".join(filter(None, (reason, alone))))


@effect("mode")
def mode(want: Want) -> Outcome:
    if want.device == "ascend" and want.value == 0:
        return not_built(ASCEND)
    eager = want.value != 0
    found = {"graph.compilation": compilation(want), "graph.modules": not eager, "torch.dynamo.force_eager": eager}
    return honoured(found)


@effect("jit_syntax_level")
def jit_syntax_level(want: Want) -> Outcome:
    outcome = _compiled(want)
    if want.value == 1 and outcome.status == "honoured":
        return approximated(outcome.assignments, "COMPATIBLE acts as LAX")
    return outcome


@effect("enable_graph_kernel")
def enable_graph_kernel(want: Want) -> Outcome:
    return _compiled(want)


@effect("precompile_only")
def precompile_only(want: Want) -> Outcome:
    return _compiled(want)

"""Options of watched models where nobody watches one: they are in force and do nothing, which needs a warning."""

from __future__ import annotations

from collections.abc import Iterable

from msctx.memory import watched
from msctx.options import Layer
from msctx.plan import Plan

ASKING = (("memory_optimize_level", "O1"), ("external_weight", True), ("variable_placement", "Host"))
"""The values that ask for something of watched models."""


def unwatched(plan: Plan, layers: Iterable[Layer], since: int) -> list[str]:
    """Warnings for options of *layers* that are carried out on watched models, of which there has been none since then."""
    own = {spelling for layer in layers for spelling in layer.settings}
    asking = [row for row in plan.rows if row.spelling in own and (row.option, row.value) in ASKING and row.assignments]
    told = (
        f"{row.spelling}={row.value}: no model was watched; it applies to models given to ctx.watch(model)" for row in asking
    )
    return [] if watched.any_since(since) else [*dict.fromkeys(told)]

"""``quant_dumpable``: what goes into a quantisation passes an operator of ours, which a compiler cannot fuse and dumps see."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

QUANTIZES = re.compile(r"_?(fake_)?quantize_|_?fused_moving_avg_obs_f")
"""How the names of operators and functions begin that quantise their first argument."""


class Marking:
    """A pass of inductor over the graph that Dynamo made, after those that the program has itself.

    *programs_own*: returns these.
    """

    def __init__(self, programs_own: Callable[[], Any]) -> None:
        self._programs_own = programs_own

    def when_loaded(self) -> None:
        """Inductor takes it for one of its passes, whose code its caches may keep: that calls the operator in later processes."""
        from torch._inductor.custom_graph_pass import CustomGraphPass

        import msctx.observers.quantized_operator  # noqa: F401

        CustomGraphPass.register(Marking)

    def _passes(self) -> tuple[Any, ...]:
        found = self._programs_own()
        return tuple(found) if isinstance(found, (list, tuple)) else () if found is None else (found,)

    def __call__(self, graph: Any) -> None:
        for one in self._passes():
            one(graph)
        _mark(graph)

    def uuid(self) -> Any:
        """By which torch's caches distinguish the code; None, as of a pass without one: they are not asked."""
        ids = [getattr(one, "uuid", lambda: None)() for one in self._passes()]
        return None if None in ids else ("msctx-quantized-inputs", *ids)


def _mark(graph: Any) -> None:
    from msctx.observers.quantized_operator import quantized_input

    for node in [*_quantizing(graph)]:
        given = node.args[0]
        with graph.inserting_before(node):
            marked = graph.call_function(quantized_input, (given,))
        marked.meta = dict(given.meta)
        node.args = (marked, *node.args[1:])


def _quantizing(graph: Any) -> Iterator[Any]:
    for node in graph.nodes:
        name = getattr(node.target, "__name__", "")
        if node.op == "call_function" and QUANTIZES.match(name) and node.args and hasattr(node.args[0], "meta"):
            yield node

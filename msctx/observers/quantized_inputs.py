"""``quant_dumpable``: what goes into a quantisation passes an operator of ours, which a compiler cannot fuse and dumps see."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from msctx.inductor_pass import Beside

QUANTIZES = re.compile(r"_?(fake_)?quantize_|_?fused_moving_avg_obs_f")
"""How the names of operators and functions begin that quantise their first argument."""


class Marking(Beside):
    """Over the graph that Dynamo made."""

    @classmethod
    def when_loaded(cls) -> None:
        """Code in inductor's caches calls the operator in later processes."""
        super().when_loaded()

        import msctx.observers.quantized_operator  # noqa: F401

    def apply(self, graph: Any) -> None:
        _mark(graph)


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

"""``quant_dumpable``: what goes into a quantisation passes an operator of ours, which a compiler cannot fuse and dumps see."""

from __future__ import annotations

import re
from typing import Any

import torch

from msctx.inductor_pass import Beside

QUANTIZES = re.compile(r"_?(fake_)?quantize_|_?fused_moving_avg_obs_f")
"""How the names of operators and functions begin that quantise their first argument."""


@torch.library.custom_op("msctx::quantized_input", mutates_args=(), schema="(Tensor input) -> Tensor")
def _copy(input: torch.Tensor) -> torch.Tensor:
    return input.clone()


_copy.register_fake(torch.clone)
_copy.register_autograd(lambda ctx, gradient: gradient)
quantized_input = torch.ops.msctx.quantized_input.default


class Marking(Beside):
    """Over the graph that Dynamo made. Code in inductor's caches calls the operator in later processes."""

    def apply(self, graph: Any) -> None:
        for node in [*graph.nodes]:
            name = getattr(node.target, "__name__", "")
            if node.op == "call_function" and QUANTIZES.match(name) and node.args and hasattr(node.args[0], "meta"):
                given = node.args[0]
                with graph.inserting_before(node):
                    marked = graph.call_function(quantized_input, (given,))
                marked.meta = dict(given.meta)
                node.args = (marked, *node.args[1:])

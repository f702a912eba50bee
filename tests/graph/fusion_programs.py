"""Small programs for fusion, and what inductor makes of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor import metrics
from torch._inductor.graph import GraphLowering

import msctx


@dataclass
class Made:
    """What came of a program: its results, the code that inductor generated, and its counters."""

    result: Any
    code: str
    kernels: int
    counters: dict[str, int]
    exact: bool
    """Whether the results are those of eager code to the last bit."""


@contextmanager
def generated() -> Iterator[list[str]]:
    """All code that inductor generates meanwhile, none of it from its caches."""
    found: list[str] = []
    before = GraphLowering.save_output_code
    GraphLowering.save_output_code = staticmethod(found.append)
    try:
        with torch._inductor.config.patch(fx_graph_cache=False), torch._functorch.config.patch(enable_autograd_cache=False):
            yield found
    finally:
        GraphLowering.save_output_code = before


def compiled(function: Callable[..., Any], *args: Any, flags: str = "", backward: bool = False, **options: Any) -> Made:
    """A program compiled afresh; its result is that of eager code, within rounding."""
    torch._dynamo.reset()
    counters.clear()
    metrics.reset()
    options = {"jit_syntax_level": "STRICT", **options} | ({"graph_kernel_flags": flags} if flags else {})
    expected = function(*args)
    with msctx.context(**options), generated() as code:
        result = msctx.jit(function)(*args)
        if backward:
            wanted = [one for one in args if one.requires_grad]
            found = torch.autograd.grad(result, wanted, retain_graph=True)
            torch.testing.assert_close(found, torch.autograd.grad(expected, wanted))
    coarse = {"rtol": 0.05, "atol": 0.1} if args[0].dtype == torch.bfloat16 else {}  # it is rounded at other places
    torch.testing.assert_close(result, expected, **coarse)
    exact = all(map(torch.equal, torch.utils._pytree.tree_leaves(result), torch.utils._pytree.tree_leaves(expected)))
    inductor = dict(counters["inductor"])
    return Made(result, "\n".join(code), metrics.generated_kernel_count, inductor, exact)


def through_graphs(requested: dict[str, Any], model: nn.Module, *inputs: torch.Tensor, **options: Any) -> tuple[Any, Any, str]:
    """What a model gives where code is compiled under *requested* and *options*: the result, what ran, and inductor's code."""
    torch._dynamo.reset()
    given = {name: value for name, value in {**requested, **options}.items() if value is not None}
    with msctx.context(**given) as ctx, torch.no_grad(), generated() as code:
        result = model(*inputs)
    return result, ctx.choices(), "".join(code)

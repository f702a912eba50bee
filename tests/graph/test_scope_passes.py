"""Patterns that are replaced by one operator where their pass is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch._dynamo.utils import counters

import msctx
from msctx.errors import OptionError

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
W, B = torch.linspace(0.5, 2, 8), torch.linspace(-1, 1, 8)


def norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return w * (centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5)) + b


def norm_of_var(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    variance = x.var(-1, keepdim=True, unbiased=False)
    return b + (x - torch.mean(x, dim=-1, keepdim=True)) * torch.rsqrt(variance + 1e-5) * w


def over_rows(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(0, keepdim=True)
    return w * (centred / torch.sqrt(centred.pow(2).mean(0, keepdim=True) + 1e-5)) + b


def unbiased(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True) + 1e-5) * w + b


def seen(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    root = torch.sqrt(centred.square().mean(-1, keepdim=True) + 1e-5)
    return centred / root * w + b + root


def chain(x: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    return x.clamp(min=-0.5).clamp_max(1.0).clip(-1, 0.75)


def crossed(x: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    return x.clamp(min=2).clamp(max=1)


def used_between(x: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    low = x.clamp(min=-0.5)
    return low.clamp(max=0.5) + low


LAYER_NORM, CLIP = "ScopeLayerNormPass", "ScopeClipBoxesPass"


def nodes(function: Callable[..., torch.Tensor], passes: str) -> tuple[list[str], int]:
    """What the graph calls, and how often the pass was applied; results and gradients are those of eager code."""
    graphs: list[torch.fx.GraphModule] = []
    import torch._functorch.config as config

    torch._dynamo.reset()
    counters.clear()
    x = X.clone().requires_grad_()
    with (
        msctx.context(
            enable_graph_kernel=False, jit_syntax_level="STRICT", **({"enable_scope_fusion_passes": passes} if passes else {})
        ),
        config.patch(joint_custom_pass=lambda graph, _: graphs.append(graph) or graph),
    ):
        result = msctx.jit(function)(x, W, B)
    expected = function(x, W, B)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(*(torch.autograd.grad(one.sum(), x)[0] for one in (result, expected)), rtol=1e-4, atol=1e-5)
    (graph,) = graphs
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"], sum(counters["msctx"].values())


@pytest.mark.parametrize("function", [norm, norm_of_var])
def test_a_layer_norm_written_out_becomes_one(function: Callable[..., torch.Tensor]) -> None:
    (before, none), (after, one) = nodes(function, ""), nodes(function, LAYER_NORM)
    assert (none, one) == (0, 1)
    assert "aten.native_layer_norm.default" in after
    assert "aten.native_layer_norm.default" not in before
    assert len(after) < len(before)
    assert nodes(function, CLIP)[0] == before


@pytest.mark.parametrize("function", [over_rows, unbiased, seen])
def test_what_is_no_layer_norm_stays(function: Callable[..., torch.Tensor]) -> None:
    assert nodes(function, LAYER_NORM) == nodes(function, "")


def test_limits_in_a_row_become_one() -> None:
    (before, _), (after, applied) = nodes(chain, ""), nodes(chain, f"{LAYER_NORM},{CLIP}")
    assert sum("clamp" in name for name in before) == 3
    assert sum("clamp" in name for name in after) == 1
    assert applied == 2


@pytest.mark.parametrize("function", [crossed, used_between])
def test_limits_that_are_no_chain_stay(function: Callable[..., torch.Tensor]) -> None:
    assert nodes(function, CLIP) == nodes(function, "")


def test_an_unknown_pass_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(OptionError, match="'ScopeLayerNorm' is not a pass") as error:
        msctx.explain(enable_scope_fusion_passes="ScopeLayerNorm")
    assert "ScopeLayerNormPass" in str(error.value)

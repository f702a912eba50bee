"""Patterns that are replaced by one operator where their pass is named."""

from collections.abc import Callable

import pytest
import torch
from torch._dynamo.utils import counters

import msctx

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
W, B = torch.linspace(0.5, 2, 8), torch.linspace(-1, 1, 8)
LAYER_NORM, CLIP = "ScopeLayerNormPass", "ScopeClipBoxesPass"


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


def written_centred(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    variance = x.var(-1, keepdim=True, unbiased=False)
    centred.add_(w)
    return centred / torch.sqrt(variance + 1e-5) * w + b


def limits(x: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    return x.clamp(min=-0.5).clamp_max(1.0).clip(-1, 0.75)


def crossed(x: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    return x.clamp(min=2).clamp(max=1)


def used_between(x: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    low = x.clamp(min=-0.5)
    return low.clamp(max=0.5) + low


def written(x: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    low = x.clamp(min=0.0)
    low[0].zero_()
    return low.clamp(max=6.0)


@pytest.mark.parametrize(
    ("function", "passes", "times"),
    [
        *((norm, LAYER_NORM, 1), (norm_of_var, LAYER_NORM, 1), (norm, CLIP, 0), (limits, f"{LAYER_NORM},{CLIP}", 2)),
        *((over_rows, LAYER_NORM, 0), (unbiased, LAYER_NORM, 0), (crossed, CLIP, 0), (used_between, CLIP, 1)),
        *((written, CLIP, 0), (written_centred, LAYER_NORM, 0)),
    ],
)
def test_what_is_replaced_and_what_stays(function: Callable[..., torch.Tensor], passes: str, times: int) -> None:
    torch._dynamo.reset()
    counters.clear()
    results = []
    for call in (function, msctx.jit(function)):
        x = X.clone().requires_grad_()
        with msctx.context(enable_graph_kernel=False, jit_syntax_level="STRICT", enable_scope_fusion_passes=passes):
            result = call(x * 1, W, B)
        results.append((result.detach(), torch.autograd.grad(result.sum(), x)[0]))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)
    assert sum(counters["msctx"].values()) == times


def test_a_pattern_of_several_dtypes_stays() -> None:
    counters.clear()
    with msctx.context(enable_graph_kernel=False, enable_scope_fusion_passes=LAYER_NORM), torch.no_grad():
        torch.testing.assert_close(msctx.jit(norm)(X.bfloat16(), W, B), norm(X.bfloat16(), W, B))
    assert not any(counters["msctx"].values())

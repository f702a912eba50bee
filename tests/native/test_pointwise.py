"""Windows of one position, computed as matrix products: every dtype with a bias, and geometries that only look like products."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as fn

import msctx

pytestmark = pytest.mark.usefixtures("one_thread")
PRODUCTS = (
    {"thread_invariant": True},
    {"batch_invariant": True},
    {"conv_fprop_algo": "implicit_gemm", "conv_dgrad_algo": "algo_1"},
)
CALLS = {
    (transposed, axes): getattr(fn, f"conv_transpose{axes}d" if transposed else f"conv{axes}d")
    for transposed in (False, True)
    for axes in (1, 2, 3)
}


@pytest.mark.parametrize("options", PRODUCTS, ids=lambda options: next(iter(options)))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_bias_of_every_dtype_is_added(options: dict[str, Any], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for (_, axes), call in CALLS.items():
        x, w, b = torch.randn(2, 6, *[5] * axes), torch.randn(6, 6, *[1] * axes), torch.randn(6)
        given = [t.to(dtype) for t in (x, w, b)]
        with msctx.context(**options) as ctx:
            found = call(*given)
        truth = call(*(t.double() for t in given))
        assert found.dtype == dtype
        assert (found - truth).abs().max() <= 4 * torch.finfo(dtype).eps * truth.abs().max() + 1e-6 * (dtype != torch.float64)
        assert "msctx" in {row.provider for row in ctx.choices()}, ctx.choices()


LIKE_PRODUCTS: tuple[tuple[tuple[int, ...], dict[str, Any]], ...] = (
    ((9,), {"padding": 1, "output_padding": 2, "dilation": 3}),
    ((3, 4), {"padding": (0, 1), "output_padding": 1, "dilation": 2}),
)
"""Transposed ones whose results have as many positions as their inputs have, in other places."""


@pytest.mark.parametrize("options", PRODUCTS, ids=lambda options: next(iter(options)))
@pytest.mark.parametrize(("size", "how"), LIKE_PRODUCTS, ids=["1d", "2d"])
def test_as_many_positions_are_not_the_same_positions(
    options: dict[str, Any], size: tuple[int, ...], how: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    call = CALLS[True, len(size)]
    x, w = torch.randn(2, 3, *size), torch.randn(3, 4, *[1] * len(size))

    def results(dtype: torch.dtype) -> list[torch.Tensor]:
        own = [t.to(dtype).requires_grad_() for t in (x, w)]
        y = call(*own, **how)
        return [y.detach(), *torch.autograd.grad(y.square().sum(), own)]

    with msctx.context(**options):
        found = results(torch.float32)
    truth = results(torch.float64)
    assert truth[0][0, 0].numel() == x[0, 0].numel()
    for one, right in zip(found, truth, strict=True):
        torch.testing.assert_close(one, right.float(), rtol=1e-4, atol=1e-4)

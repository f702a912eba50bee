"""The error that `choices()` states of a product, over kinds of data."""

from __future__ import annotations

import product_data
import pytest
import torch

import msctx

SIZES = ((1, 40, 30), (33, 70, 50), (100, 257, 31))
DENORMAL = 2.0**-149


@pytest.mark.parametrize("algorithm", ["strict", "reference"])
@pytest.mark.parametrize("kind", product_data.KINDS)
def test_the_stated_error_holds(kind: str, algorithm: str) -> None:
    torch.manual_seed(0)
    for sizes in SIZES[:1] if kind == "trained" else SIZES:
        left, right = product_data.factors(kind, *sizes)
        with msctx.context(matmul_algo=algorithm, fallback="error") as ctx:
            found = left @ right
        (row,) = ctx.choices()
        exact, magnitudes = left.double() @ right.double(), left.double().abs() @ right.double().abs()
        allowed = row.error * magnitudes.max() + DENORMAL * left.shape[1]
        assert 0 < row.error < 1e-4
        assert (found.double() - exact).abs().max() <= allowed, sizes

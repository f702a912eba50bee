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


def test_data_is_what_its_name_says() -> None:
    torch.manual_seed(0)
    for kind in product_data.KINDS:
        left, right = product_data.factors(kind, 100, 257, 31)
        assert left.shape[1] == right.shape[0]
        assert left.isfinite().all()
    left, right = product_data.factors("cancelling", 100, 256, 31)
    assert (left @ right).abs().max() < 1e-3 * (left.abs() @ right.abs()).max()
    left, _ = product_data.factors("denormal", 10, 10, 10)
    assert 0 < left.abs().max() < torch.finfo(torch.float32).tiny
    left, _ = product_data.factors("by element", 100, 257, 31)
    assert left.abs().max() / left.abs().min() > 2.0**36

"""The bound that `choices()` states holds for the whole call: with a bias, and with alpha, beta and what is added."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as fn

import msctx

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SMALLEST = {torch.float16: 2.0**-25, torch.bfloat16: 2.0**-134, torch.float32: 2.0**-146, torch.float64: 0.0}
"""dtype → what may be lost of results below its smallest normal number, where no bound is relative."""


def call(kind: str, a: Tensor, b: Tensor, added: Tensor, alpha: float, beta: float) -> Tensor:
    match kind:
        case "addmm":
            return torch.addmm(added, a, b, alpha=alpha, beta=beta)
        case "addmv":
            return torch.addmv(added[0, :1].expand(a.shape[0]), a, b[:, 0], alpha=alpha, beta=beta)
        case "baddbmm":
            return torch.baddbmm(added.unsqueeze(0), a.expand(2, *a.shape), b.expand(2, *b.shape), alpha=alpha, beta=beta)
        case "linear":
            return fn.linear(a, b.t(), added.flatten())
        case "convolution":
            return fn.conv1d(a.t().unsqueeze(0), b.t().unsqueeze(2), added.flatten())
        case _:
            return fn.conv_transpose2d(a.t()[None, :, :, None], b[:, :, None, None], added.flatten())


KINDS = ("addmm", "addmv", "baddbmm", "linear", "convolution", "transposed convolution")


def over_bound(kind: str, algorithm: str, operands: tuple[Tensor, Tensor, Tensor], alpha: float, beta: float) -> float:
    """The largest error, in units of the bound."""
    with msctx.context(matmul_algo=algorithm, conv_fprop_algo="gemm" if algorithm == "strict" else algorithm) as ctx:
        found = call(kind, *operands, alpha, beta)
    (row,) = ctx.choices()
    assert row.ran != "torch"
    right = call(kind, *(t.double() for t in operands), alpha, beta)
    size = call(kind, *(t.double().abs() for t in operands), abs(alpha), abs(beta))
    allowed = row.error * size.max() + SMALLEST[found.dtype] * max(1.0, abs(alpha)) * operands[0].shape[1]
    finite = right.abs() <= torch.finfo(found.dtype).max
    return float(((found.double() - right).abs()[finite] / allowed).max()) if finite.any() else 0.0


numbers = st.sampled_from([1.0, -1.0, 0.1, 1 / 3, -3.3, 1000.7])


@pytest.mark.parametrize("examples", [60, pytest.param(500, marks=pytest.mark.full)])
def test_bounds_of_whole_calls(examples: int) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(
        kind=st.sampled_from(KINDS),
        algorithm=st.sampled_from(["strict", "reference"]),
        dtype=st.sampled_from(DTYPES),
        sizes=st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9)),
        seed=st.integers(0, 2**31),
        sign=st.sampled_from([1, -1, 0]),
        alpha=numbers,
        beta=numbers,
    )
    def holds(
        kind: str, algorithm: str, dtype: Any, sizes: tuple[int, int, int], seed: int, sign: int, alpha: float, beta: float
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        rows, depth, columns = sizes
        a = (torch.rand(rows, depth, generator=generator) + 1).to(dtype)
        b = (torch.rand(depth, columns, generator=generator) + 1).to(dtype)
        added = (
            torch.randn(1, columns, generator=generator) if sign == 0 else sign * (a.float() @ b.float()).mean(0, keepdim=True)
        )
        assert over_bound(kind, algorithm, (a, b, added.to(dtype)), alpha, beta) <= 1.0

    holds()


@pytest.mark.parametrize("algorithm", ["strict", "reference"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_sum_alone_would_lose(kind: str, algorithm: str) -> None:
    """16 bits are rounded after the bias: the sum is beyond float16. A factor keeps what the sum, or what it scales, cannot hold."""
    if kind in ("linear", "convolution", "transposed convolution"):
        operands = torch.full((2, 8), 100.0).half(), torch.full((8, 3), 90.0).half(), torch.full((1, 3), -20000.0).half()
        assert over_bound(kind, algorithm, operands, 1.0, 1.0) <= 1.0
        return
    for a, b, alpha in ((1e30, 1e30, 1e-30), (1e30, 1e-30, 1e30), (1e-25, 1e-20, 1e30), (1e-30, 1e30, 1e-20)):
        operands = torch.full((5, 7), a), torch.full((7, 3), b), torch.zeros(1, 3)
        assert over_bound(kind, algorithm, operands, alpha, 1.0) <= 1.0, (a, b, alpha)


def test_an_element_that_overflows_leaves_the_bits_of_others_alone() -> None:
    a, b = torch.randn(6, 40, generator=torch.Generator().manual_seed(0)), torch.randn(40, 8)
    huge = a.clone()
    huge[0] = 3e38
    with msctx.context(matmul_algo="strict", batch_invariant=True):
        for alpha in (0.3, 3.3):
            found = [torch.addmm(torch.zeros(8), each, b, alpha=alpha)[1:] for each in (a, huge)]
            assert torch.equal(*found)

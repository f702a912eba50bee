"""MKL's strict mode: what it keeps, in all matmuls; that it can be had only before the first of them, and stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from msctx.switches import mkl

pytestmark = pytest.mark.skipif(not (mkl.has_mkl() and mkl.is_intels()), reason="no MKL with a strict mode")
Passes = Callable[..., str]

PRODUCTS = """
import torch
from torch.nn import functional as F

SHAPES = ((1, 768, 96), (7, 100, 33), (64, 300, 500), (100, 1001, 77), (512, 64, 64), (17, 3000, 19), (300, 20, 20))
def gradients(x, w):
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    F.linear(x, w).square().sum().backward()
    return x.grad, w.grad

def products(dtype):
    torch.manual_seed(0)
    for m, k, n in SHAPES:
        x, w, b = torch.randn(m, k, dtype=dtype), torch.randn(n, k, dtype=dtype), torch.randn(n, dtype=dtype)
        yield x, lambda x: F.linear(x, w, b)
        yield x, lambda x: x @ w.t().contiguous()
        yield x, lambda x: torch.einsum("ik,jk->ij", x, w)
        yield x, lambda x: gradients(x, w)[0]
        yield None, lambda _: gradients(x, w)[1]
    x, w = torch.randn(12, 130, 40, dtype=dtype), torch.randn(12, 40, 50, dtype=dtype)
    yield x, lambda x: torch.bmm(x, w[: len(x)])

def differing():
    threads = rows = 0
    for dtype in (torch.float32, torch.float64):
        for x, product in products(dtype):
            torch.set_num_threads(1)
            whole = product(x)
            for count in (2, 3, 4):
                torch.set_num_threads(count)
                threads += not torch.equal(product(x), whole)
            if x is not None:
                rows += sum(not torch.equal(product(x[:some]), whole[:some]) for some in (1, 2, 3, 8, 33, len(x) // 2) if some)
    return threads, rows
"""


def test_products_keep_their_bits_for_any_threads_and_rows(passes: Passes) -> None:
    passes(f"""{PRODUCTS}
import msctx, pytest
from msctx.switches import mkl
assert mkl.read_mkl() == "OFF" and not mkl.mkl_obstacle() and mkl.read_mkl() == "OFF", "asking changes nothing"
with pytest.raises(msctx.StrictError, match="thread_invariant: torch.mkl.cbwr"), msctx.context(thread_invariant=True, strict=True):
    pass
assert mkl.read_mkl() == "OFF"
with pytest.warns(msctx.MsctxWarning, match="stays after this with-block"), msctx.context(thread_invariant=True) as ctx:
    assert "MKL's strict mode" in ctx.plan.rows[0].reason
    assert mkl.is_strict() and differing() == (0, 0)
assert mkl.is_strict() and not mkl.mkl_obstacle()
with msctx.context(batch_invariant=True, strict=True) as ctx:  # now nothing is left to be put back
    left, right = torch.randn(8, 5, 100), torch.randn(8, 100, 400)
    assert torch.equal(torch.bmm(left[:, 3:4], right), torch.bmm(left, right)[:, 3:4]), "MKL's mode does not cover batches"
    torch.mm(left[0], right[0])
found = dict((str(row.problem), row.ran) for row in ctx.choices())
assert found["8x5x100 * 8x100x400, float32, NN"] == "strict" and found["5x100 * 100x400, float32, NN"] == "torch"
""")


def test_without_it_they_do_not_and_then_it_is_too_late(passes: Passes) -> None:
    passes(f"""{PRODUCTS}
import warnings
import msctx
from msctx.switches import mkl
found = differing()
assert any(found)
assert "MKL has computed before" in mkl.mkl_obstacle() and mkl.read_mkl() == "OFF"
with msctx.context(batch_invariant=True) as ctx:
    assert mkl.read_mkl() == "OFF" and "MKL_CBWR=AUTO,STRICT" in ctx.plan.rows[0].reason
    assert differing() == (0, 0), "msctx's own kernels run"
""")


@pytest.mark.parametrize(("value", "is_strict"), [("AVX2,STRICT", True), ("COMPATIBLE", False)])
def test_the_users_own_mode_is_read_and_a_strict_one_serves(passes: Passes, value: str, is_strict: bool) -> None:
    passes(
        f"""
import os, torch
os.environ["MKL_CBWR"] = {value!r}
import msctx
assert msctx.state()["torch.mkl.cbwr"] == {value!r}
from msctx.switches import SWITCHES, mkl
assert SWITCHES["torch.mkl.cbwr"].is_satisfied(mkl.STRICT) is {is_strict}
assert mkl.mkl_obstacle() == "" and mkl.read_mkl() == {value!r}
"""
    )

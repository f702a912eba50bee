"""A matrix unit through torch, where the unit is software: values of products, bounds, padding, kept weights; images one by one."""

from collections.abc import Callable
from pathlib import Path

import pytest
from variants import has_avx512

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not has_avx512(), reason="the matrix unit is emulated on AVX-512"),
]
PARTS = {
    "amx_fp16_emulated": ("fp16x3", "int8x6", "bf16x9", "bf16x6", "bf16x3", "tf32"),
    "amx_emulated": ("int8x6", "bf16x6", "bf16x3", "tf32"),
}
START = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import torch
import variants
variants.use_emulated()
import msctx
"""
PROGRAM = """
torch.manual_seed(0)
for algo in PARTS:
    a, b = torch.randn(40, 50), torch.randn(50, 60)
    a[3, 4], b[5, 6] = torch.inf, torch.nan
    with msctx.context(matmul_algo=algo):
        found = a @ b
    assert torch.equal(found.isfinite(), (a @ b).isfinite()), algo
    left, right = torch.randint(-9, 10, (70, 80)).float(), torch.randint(-9, 10, (80, 90)).float()
    with msctx.context(matmul_algo=algo):
        small = left @ right
    is_fixed_point = algo == "int8x6" or (algo == "tf32" and PARTS[0] != "fp16x3")
    assert is_fixed_point or torch.equal(small, left @ right), "scales are powers of two"
    layer = torch.nn.Linear(64, 48)
    with msctx.context(matmul_algo=algo, fallback="error") as ctx, torch.no_grad():
        first = layer(torch.ones(40, 64))
        assert torch.equal(first, layer(torch.ones(40, 64)))
        layer.weight.data.mul_(2)
        assert not torch.equal(first, layer(torch.ones(40, 64)))
    (row,) = ctx.choices()
    assert (row.calls, row.weights_kept, row.weights_prepared) == (3, 1, 2), row
    cache = torch.zeros(48, 40)  # no weight: frozen_weights must not apply to it
    with msctx.context(matmul_algo=algo, fallback="error", frozen_weights=True), torch.no_grad():
        for _ in range(3):
            cache.normal_()
            with msctx.context(matmul_algo="reference"):
                right = first @ cache
            assert ((first @ cache) - right).abs().max() < 0.05 * right.abs().max(), algo
    with msctx.context(matmul_algo=algo, fallback="error") as ctx:
        layer(torch.ones(40, 64, requires_grad=True)).square().sum().backward()
    assert {r.problem.layout for r in ctx.choices()} == {"NT", "NN", "TN"}
    assert not any(r.weights_kept or r.weights_prepared for r in ctx.choices())
    def step(a, b): return (a @ b).relu()
    with msctx.context(matmul_algo=algo, fallback="error"):
        a, b = torch.randn(64, 64), torch.randn(64, 64)
        assert torch.equal(torch.compile(step)(a, b), step(a, b))
for algo, error in (("normal", 3e-5), ("tf32", 1)):
    options = {"matmul_algo": "normal"} if algo == "normal" else {"matmul_allow_tf32": True}
    with msctx.context(**options) as ctx:
        torch.randn(512, 512) @ torch.randn(512, 512).t()
    (row,) = ctx.choices()
    assert row.math == ("fp32-grade" if algo == "normal" else "tf32"), row
"""


Emulated = Callable[[str, str], str]


@pytest.fixture
def emulated(passes_fresh: Callable[..., str]) -> Emulated:
    """Run code after START on an instruction set whose matrix unit is software."""
    return lambda code, isa: passes_fresh(START + code, env={"MSCTX_ISA": isa}, timeout=900)


@pytest.mark.parametrize("isa", PARTS)
def test_values_bounds_and_kept_weights(emulated: Emulated, isa: str) -> None:
    emulated(f"PARTS = {PARTS[isa]!r}\n{PROGRAM}", isa)


IMAGES = """
torch.manual_seed(0)
x, w = torch.randn(4, 32, 12, 12), torch.randn(48, 32, 3, 3)
x[1] *= 1e6
x[2, 3, 4, 5] = torch.inf  # which parts do not have: the problem is computed again
exact = torch.nn.functional.conv2d(x.double(), w.double())
for more, math in (({}, "fp32-grade"), ({"conv_allow_tf32": True}, "tf32")):
    with msctx.context(conv_fprop_algo="implicit_gemm", batch_invariant=True, fallback="error", **more) as ctx:
        whole = torch.nn.functional.conv2d(x, w)
        for i in range(4):
            alone = torch.nn.functional.conv2d(x[i : i + 1], w)
            torch.testing.assert_close(alone, whole[i : i + 1], rtol=0, atol=0, equal_nan=True, msg=f"{math} {i}")
    assert {row.math for row in ctx.choices()} == {math}, ctx.choices()
    for i in (0, 1, 3):
        assert (whole[i] - exact[i]).abs().max() <= ctx.choices()[0].error * exact[i].abs().max(), (math, i)
"""


@pytest.mark.parametrize("isa", PARTS)
def test_images_are_computed_one_by_one_under_batch_invariant(emulated: Emulated, isa: str) -> None:
    emulated(IMAGES, isa)

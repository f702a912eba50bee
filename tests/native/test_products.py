"""Matrix products under a policy: every operator in every form, values within the bound that is stated, what ran, what is torch's."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as fn

import msctx
from msctx.errors import MsctxWarning

Call = Callable[..., Tensor]
STRICT = {"float32": 2e-5, "float64": 1e-14, "float16": 1e-3, "bfloat16": 8e-3}
"""dtype → what is allowed of an error, in units of the sum of the products' magnitudes."""


def matrices(*sizes: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(a, b, generator=generator).to(dtype) for a, b in pairwise(sizes)]


def in_place(added: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return added.clone().addmm_(a, b, beta=0.5, alpha=2)


def into(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    out = a.new_empty(0) if out is None else out
    assert torch.mm(a, b, out=out) is out
    return out


FORMS: dict[str, Call] = {
    "mm": torch.mm,
    "mm.out": into,
    "mm.out in columns": lambda a, b: into(a, b, a.new_empty(b.size(1), a.size(0)).t()),
    "addmm": lambda a, b: torch.addmm(b[0], a, b),
    "addmm, scaled": lambda a, b: torch.addmm(a[:, :1], a, b, beta=0.5, alpha=2),
    "addmm.out": lambda a, b: torch.addmm(b[0], a, b, out=a.new_empty(a.size(0), b.size(1))),
    "addmm_": lambda a, b: in_place(a.new_ones(a.size(0), b.size(1)), a, b),
    "addmm without what is added": lambda a, b: torch.addmm(a.new_full((1,), torch.nan), a, b, beta=0),
    "_addmm_activation": lambda a, b: torch._addmm_activation(b[0], a, b),
    "_addmm_activation, gelu": lambda a, b: torch._addmm_activation(b[0], a, b, use_gelu=True),
    "_addmm_activation.out": lambda a, b: torch.ops.aten._addmm_activation.out(b[0], a, b, out=a.new_empty(0)),
    "bmm": lambda a, b: torch.bmm(a.expand(3, *a.shape), torch.stack([b, -b, 2 * b])),
    "bmm.out": lambda a, b: torch.bmm(a.expand(2, *a.shape), b.expand(2, *b.shape), out=a.new_empty(2, a.size(0), b.size(1))),
    "baddbmm": lambda a, b: torch.baddbmm(b[:1], a.expand(3, *a.shape), b.expand(3, *b.shape), beta=2, alpha=-1),
    "baddbmm_": lambda a, b: a.new_ones(2, a.size(0), b.size(1)).baddbmm_(a.expand(2, *a.shape), b.expand(2, *b.shape)),
    "baddbmm.out": lambda a, b: torch.baddbmm(a.new_ones(1), a[None], b[None], beta=3, out=a.new_empty(0)),
    "mv": lambda a, b: torch.mv(a, b[:, 0]),
    "mv.out": lambda a, b: torch.mv(a, b[:, 0], out=a.new_empty(a.size(0))),
    "addmv": lambda a, b: torch.addmv(a[:, 0], a, b[:, -1], beta=3),
    "addmv.out": lambda a, b: torch.addmv(a[:, 0], a, b[:, -1], out=a.new_empty(0)),
    "addmv_": lambda a, b: a[:, 0].clone().addmv_(a, b[:, -1]),
    "linear": lambda a, b: fn.linear(a, b.t().contiguous(), b[0]),
    "linear of images": lambda a, b: fn.linear(torch.stack([a, 2 * a]), b.t().contiguous()),
    "both transposed": lambda a, b: torch.mm(a.t().contiguous().t(), b.t().contiguous().t()),
    "every second row and column": lambda a, b: torch.mm(a[::2], b[:, ::2]),
    "expanded": lambda a, b: torch.mm(a[:, :1].expand(*a.shape), b[:1].expand(*b.shape)),
    "a lower triangle": lambda a, b: torch.einsum("ij,jk->ki", a, b),
}


def near(found: Tensor, call: Call, tensors: list[Tensor]) -> None:
    right, size = call(*(t.double() for t in tensors)), call(*(t.double().abs() for t in tensors))
    allowed = STRICT[str(found.dtype).removeprefix("torch.")]
    assert found.shape == right.shape
    assert ((found.double() - right).abs() <= allowed * size.abs().clamp_min(1)).all()


@pytest.mark.parametrize("dtype", STRICT)
def test_every_operator_in_every_form(dtype: str) -> None:
    for name, call in FORMS.items():
        tensors = matrices(37, 53, 29, dtype=getattr(torch, dtype))
        with msctx.context(matmul_algo="strict", fallback="error") as ctx:
            found = call(*tensors)
        near(found, call, tensors)
        plain = call(*tensors)
        assert (found.dtype, found.stride()) == (plain.dtype, plain.stride()), name
        assert {(row.direction, row.ran, row.problem.dtype) for row in ctx.choices()} == {("matmul", "strict", dtype)}, name


def test_a_result_is_computed_where_it_is_wanted() -> None:
    a, b = matrices(37, 53, 29)
    for name, added in (("bias", b[0]), ("matrix", a[:, :29].contiguous())):
        out = a.new_empty(37, 29)
        with msctx.context(matmul_algo="strict", fallback="error"), torch.profiler.profile() as profile:
            torch.addmm(added, a, b, out=out)
        near(out, lambda added, a, b: torch.addmm(added, a, b), [added, a, b])
        assert "aten::copy_" not in {event.name for event in profile.events()}, name


def test_a_result_in_memory_that_has_two_storages() -> None:
    array, b = np.ones((9, 9), np.float32), torch.eye(9)
    added, out = torch.from_numpy(array), torch.from_numpy(array)
    with msctx.context(matmul_algo="strict", fallback="error"):
        torch.addmm(added, b, b, out=out)
    assert torch.equal(out, torch.ones(9, 9) + b)


def test_a_result_over_a_factor() -> None:
    a, b = matrices(37, 53, 29)
    for bias in (None, b[0]):
        memory = a.flatten().clone()
        over = memory[: 37 * 29].view(37, 29)
        with msctx.context(matmul_algo="strict", fallback="error"):
            if bias is None:
                torch.mm(memory.view_as(a), b, out=over)
            else:
                torch.addmm(bias, memory.view_as(a), b, out=over)
            near(over, torch.mm if bias is None else lambda a, b: torch.addmm(b[0], a, b), [a, b])


def test_a_mistake_is_reported_by_torch() -> None:
    (a,) = matrices(3, 4)
    square = a @ a.t()
    for wrong in (
        lambda: a @ a,
        lambda: torch.mm(a, a.t().double()),
        lambda: torch.addmm(a, a, a.t()),
        lambda: torch.addmm(square, a, a.t(), alpha=1j),
        lambda: torch.addmm(torch.zeros(9, 9), a, a.t(), beta=0),
        lambda: torch.ones(1, 3).addmm_(a, a.t()),
        lambda: torch.ones(1).expand(3, 3).addmm_(a, a.t()),
        lambda: torch.mm(a, a.t(), out=square.double()),
    ):
        with pytest.raises(RuntimeError) as plain:
            wrong()
        with msctx.context(matmul_algo="strict", fallback="error"), pytest.raises(RuntimeError) as ours:
            wrong()
        assert str(ours.value) == str(plain.value)


def test_others_are_torchs() -> None:
    """What is not strided, or not real: the kernels in force before ours, and no row."""
    (a,) = matrices(6, 6)
    sparse, wide = a.relu().to_sparse(), torch.complex(a, a)
    calls: list[Callable[[], Tensor]] = [
        lambda: torch.sparse.mm(sparse, a),
        lambda: torch.mm(sparse.to_sparse_csr(), a),
        lambda: torch.addmm(a, sparse, a),
        lambda: torch.mm(wide.conj(), wide),
        lambda: torch.mm(wide.conj().imag, a),  # real, but with a pending negation
        lambda: torch.mm(a.long(), a.long()),
    ]
    plain = [call() for call in calls]
    with msctx.context(matmul_algo="reference", fallback="error") as ctx:
        found = [call() for call in calls]
    for one, other in zip(found, plain, strict=True):
        torch.testing.assert_close(one, other)
    assert {row.ran for row in ctx.choices()} <= {"reference"}


# --- what ran ---------------------------------------------------------------------------------------------------------


def test_a_training_step_by_module() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.ReLU(), torch.nn.Linear(20, 5))
    rules = {"0": "strict", "input=*x20 weight=20x5": "reference"}
    with msctx.context(matmul_algo_rules=rules, fallback="error") as ctx:
        ctx.watch(model)
        model(matrices(8, 30)[0]).sum().backward()
    found = {(str(row.problem), row.module): row.ran for row in ctx.choices()}
    assert found == {
        ("8x30 * 30x20, float32, NT", "0"): "strict",
        ("8x20 * 20x5, float32, NT", "2"): "reference",
    }


def test_a_rule_that_matches_nothing_is_reported() -> None:
    with (
        pytest.warns(MsctxWarning, match="matmul_algo_rules: no product matched decoder"),
        msctx.context(matmul_algo_rules={"decoder.*": "strict"}),
    ):
        torch.mm(*matrices(3, 4, 5))
    with msctx.context(matmul_algo_rules={"decoder.*": "strict"}):  # none ran that it could have matched
        fn.conv2d(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 3, 3))


def test_a_bound_that_nothing_of_ours_keeps_leaves_torchs_own_path_but_not_under_an_invariance() -> None:
    """Of torch's own products none is known, whatever MKL keeps of their bits."""
    factors = matrices(40, 50, 60)

    def row(**options: Any) -> Any:
        with msctx.context(**options) as ctx:
            torch.mm(*factors)
        return ctx.choices()[0], ctx.plan.rows

    chosen, _ = row(matmul_algo="normal", matmul_max_error=1e-9)
    assert chosen.ran == "torch"
    assert "strict: its error bound is above matmul_max_error=1e-09" in chosen.reasons
    chosen, plan = row(matmul_algo="strict", matmul_max_error=1e-9)
    assert chosen.ran == "strict"
    assert "named algorithms have no bound" in plan[1].reason
    for option in ("thread_invariant", "batch_invariant"):
        assert row(matmul_max_error=1e-5, **{option: True})[0].ran == "strict"
        with pytest.raises(RuntimeError, match="above matmul_max_error=1e-09"):
            row(matmul_max_error=1e-9, fallback="error", **{option: True})


def test_what_computes_past_the_hook_is_counted_and_refused() -> None:
    query = torch.randn(1, 2, 16, 8)
    with msctx.context(matmul_algo="strict", fallback="silent") as ctx:
        fn.scaled_dot_product_attention(query, query, query)
    (row,) = ctx.choices()
    assert (row.direction, row.ran) == ("matmul", "torch")
    assert "_scaled_dot_product_flash_attention_for_cpu is a separate operator" in row.reasons[0]
    with msctx.context(matmul_algo="strict", fallback="error"), pytest.raises(RuntimeError, match="separate operator"):
        fn.scaled_dot_product_attention(query, query, query)
    with msctx.context(conv_fprop_algo="gemm", fallback="error") as ctx:  # a policy for convolutions alone
        fn.scaled_dot_product_attention(query, query, query)
    assert not ctx.choices()


# --- the bound that is stated holds for the whole call ------------------------------------------------------------------


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

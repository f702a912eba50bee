"""Determinism: the same bits in each run, for each number of threads and each instruction set."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import zip_longest

import pytest
import torch
from convs import DIRECTIONS, FIXED, Conv, bits, conv

import msctx
from msctx.native import core

Threads = Callable[[int], AbstractContextManager[None]]
COUNTS = (1, 2, 3, 7)
PROBLEMS = [
    conv("plane", (3, 18, 20, 19), (17, 18, 3, 3), True, padding=1),
    conv("groups", (2, 12, 15, 16), (24, 3, 5, 5), True, groups=4, padding=2),
    conv("depthwise", (2, 9, 17, 15), (9, 1, 3, 3), True, groups=9, padding=1),
    conv("strided", (2, 5, 33, 31), (7, 5, 3, 3), True, stride=2, dilation=2),
    conv("1d", (3, 6, 201), (8, 6, 5), True),
    conv("3d", (2, 3, 8, 9, 10), (5, 3, 3, 3, 3), True, padding=1),
    conv("transposed", (2, 10, 13, 12), (10, 7, 3, 3), True, stride=2, padding=1, transposed=True),
    conv("half", (2, 6, 15, 15), (8, 6, 3, 3), True, padding=1),
]
each = pytest.mark.parametrize("problem", PROBLEMS, ids=str)


def dtype_of(problem: Conv) -> torch.dtype:
    return torch.bfloat16 if problem.name == "half" else torch.float32


SETS = [
    {f"conv_{row[0]}_algo": row[1] for row in rows if row}
    for rows in zip_longest(*([row for row in FIXED if row[0] == direction] for direction in DIRECTIONS))
]
"""All rows of fixed order, one of each direction at a time."""
TF32 = {
    "conv_fprop_algo": "implicit_precomp_gemm",
    "conv_dgrad_algo": "algo_1",
    "conv_wgrad_algo": "algo_1",
    "conv_allow_tf32": True,
}


@each
def test_the_bits_of_rows_of_fixed_order_do_not_depend_on_the_threads(problem: Conv, threads: Threads) -> None:
    tensors = problem.tensors(dtype_of(problem))
    found: dict[str, set[bytes]] = {}
    for count in COUNTS:
        with threads(count):
            for options in (*SETS, TF32):
                with msctx.context(**options, fallback="silent") as ctx:
                    results = problem.compute(tensors)._asdict()
                for row in ctx.choices():
                    if row.ran != "torch":
                        rounded = " (tf32)" if row.math == "tf32" else ""
                        found.setdefault(f"{row.direction}-{row.ran}{rounded}", set()).update(bits([results[row.direction]]))
    assert {"fprop-gemm", "dgrad-algo_1", "wgrad-algo_1", "fprop-reference"} <= {*found}
    if problem.name == "plane":
        assert {key for key in found if "tf32" not in key} == {f"{direction}-{name}" for direction, name in FIXED}
    assert {name: len(different) for name, different in found.items() if len(different) > 1} == {}


@each
def test_thread_invariant_holds_for_every_convolution_and_all_of_its_gradients(problem: Conv, threads: Threads) -> None:
    tensors = problem.tensors(dtype_of(problem))
    found, ran = [], set()
    for count in COUNTS:
        with threads(count), msctx.context(thread_invariant=True, fallback="error") as ctx:
            found.append(bits(problem.compute(tensors)))
        ran.add(tuple(sorted((row.direction, row.ran) for row in ctx.choices())))
        assert {row.provider for row in ctx.choices()} == {"msctx"}
    assert all(one == found[0] for one in found)
    assert len(found[0]) == 4, "the gradient of the bias too"
    assert len(ran) == 1


def test_thread_invariant_holds_under_a_workspace_limit(threads: Threads) -> None:
    """Some workspaces grow with the threads; that must not change which row is taken."""
    problem = conv("limit", (2, 8, 24, 24), (8, 8, 3, 3), padding=1)
    tensors = problem.tensors()
    with threads(1), msctx.context(thread_invariant=True) as ctx:
        problem.compute(tensors)
    limits = {row.workspace for row in ctx.choices()}
    for limit in sorted(limits | {2 * limit for limit in limits}):
        found = []
        for count in COUNTS:
            with threads(count), msctx.context(thread_invariant=True, conv_workspace_limit=limit, fallback="silent"):
                found.append(bits(problem.compute(tensors)))
        assert all(one == found[0] for one in found), limit


# --- instruction sets ------------------------------------------------------------------------------------------------


def test_an_unknown_instruction_set_is_refused_with_those_that_are_here(passes: Callable[..., str]) -> None:
    out = passes(
        """
        import warnings, torch, msctx
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            with msctx.context(conv_fprop_algo="gemm") as ctx:
                torch.nn.functional.conv2d(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 3, 3))
        print([str(w.message) for w in found], len(ctx.choices()))
        try:
            msctx.context(conv_fprop_algo="gemm", strict=True).__enter__()
        except msctx.StrictError as error:
            print("strict", error)
        """,
        env={"MSCTX_ISA": "avx3"},
    )
    assert "MSCTX_ISA='avx3'" in out
    assert all(isa in out for isa in core.load().isas())
    assert "refused" in out
    assert "strict" in out

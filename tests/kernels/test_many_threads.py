"""Again and again with more threads than processors; sums to which several threads add."""

import numpy as np
import pytest
from cases import case
from checks import distance, largest, stored, takes, terms, truth

from kernels import BACKWARD_DATA, ROWS, Kernels, Row

SHARED = (
    case(3, 20, 18, (13, 14), 3, padding=1),
    case(24, 1, 1, (9, 8), 3, padding=1),
    case(1, 2, 2, (64, 70), 3, padding=1),
)

CUT = (
    case(1, 15, 790, (24, 25), 3, padding=1),
    case(2, 260, 530, (1, 700), 1),
    case(1, 260, 530, (1, 103), 1, dtype="float16"),
)
"""More results than one thread computes at once, and not a whole number of tiles."""


@pytest.mark.full
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("algorithm", ["product", "gemm", "implicit_gemm", "implicit_precomp_gemm"])
def test_how_results_are_cut_for_threads_decides_no_bits(kernels: Kernels, algorithm: str, channels_last: bool) -> None:
    rows = [row for row in kernels.rows if row.algorithm == algorithm and (row.reads_channels_last or not channels_last)]
    for row, each in ((row, each) for row in rows for each in CUT if takes(row, each)):
        right = truth(kernels, row.op, each)
        for isa in row.isas:
            one, *others = (
                kernels.run(row, each, stored(each), isa, threads, channels_last=channels_last) for threads in (1, 2, 3, 7)
            )
            assert distance(one, right) <= kernels.error(row, each) * largest(right), (row, each)
            assert {other.tobytes() for other in others} == {one.tobytes()}, (row, each)


@pytest.mark.parametrize("row", ROWS, indirect=True)
def test_repeated(kernels: Kernels, row: Row) -> None:
    for each in (c for c in SHARED if takes(row, c)):
        results = [kernels.run(row, each, stored(each), threads=16) for _ in range(3 if row.fixed_order else 20)]
        right = truth(kernels, row.op, each)
        bound = kernels.error(row, each) * largest(right)
        assert all(distance(result, right) <= bound for result in results), each
        assert not row.fixed_order or len({result.tobytes() for result in results}) == 1, each


def test_threads_that_add_to_the_same_sums_lose_nothing(kernels: Kernels) -> None:
    """All numbers are one, so that a sum is the number of its products, whatever their order; one that is lost is seen."""
    rows = [row for row in kernels.rows if not row.fixed_order]
    assert len(rows) >= 3
    for row in rows:
        each = case(1, 1, 4800, 4, 1) if row.op == BACKWARD_DATA else case(6000, 1, 1, 3, 1)
        x, w, y = (np.ones(shape, np.float32) for shape in each.shapes)
        for _ in range(60):
            assert (kernels.run(row, each, (x, w, y), threads=8) == terms(row.op, each)).all(), row

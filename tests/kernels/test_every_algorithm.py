"""Every row of the table on every problem it takes: right, and the same bits wherever it says so; a reason for every other."""

from itertools import product

import numpy as np
import pytest
from cases import CASES, OTHER_CASES, Case, case
from checks import distance, largest, stored, takes, truth

from kernels import BACKWARD_DATA, FORWARD, ROWS, TARGETS, Kernels, Row, garbage

ALL = (*CASES, *OTHER_CASES)
THREADS = (1, 2, 3, 7)
SHARED = case(3, 20, 18, (13, 14), 3, padding=1)
"""Enough images, channels and tiles for several tasks in each algorithm."""
DEPTHWISE = case(3, 40, 40, (13, 14), 3, padding=1, groups=40)
LONG = case(1, 40, 75, (30, 34), 5, padding=2)
"""More than one block of each matmul, along each of its sides, and more than one part of Winograd's rows."""
_WINOGRAD = {f"{unit}winograd{kind}" for unit in ("", "tiles_") for kind in ("", "_nonfused")}
BOTH_WAYS = {"gemm", "reference", "fft", "fft_tiling", *_WINOGRAD}
"""Compute both forward and backward_data."""

pytestmark = pytest.mark.parametrize("row", ROWS, indirect=True)


def within(kernels: Kernels, row: Row, each: Case, result: np.ndarray, op: int | None = None) -> str:
    """What is wrong with the result, or nothing."""
    right = truth(kernels, row.op if op is None else op, each)
    error, bound = distance(result, right), kernels.error(row, each, op) * largest(right)
    return "" if error <= bound else f"{each}: {error:.3g} is more than {bound:.3g}"


def test_takes_what_it_is_meant_for(kernels: Kernels, row: Row) -> None:
    wrong = [str(c) for c in (*ALL, SHARED, DEPTHWISE, LONG) if takes(row, c) != (not kernels.reasons(row, c))]
    assert not wrong


def test_right(kernels: Kernels, row: Row) -> None:
    taken = [c for c in (*ALL, SHARED, DEPTHWISE, LONG) if takes(row, c)]
    assert len(taken) >= 4
    wrong = []
    for each in taken:
        result = kernels.run(row, each, stored(each))
        wrong += [within(kernels, row, each, result)]
        if row.reads_channels_last:
            last = kernels.run(row, each, stored(each), channels_last=True)
            wrong += [f"{each}: other bits in channels_last" if last.tobytes() != result.tobytes() and row.fixed_order else ""]
            wrong += [within(kernels, row, each, last)]
    assert not any(wrong), [text for text in wrong if text]


@pytest.mark.full
def test_same_bits_on_every_isa_and_with_any_number_of_threads(kernels: Kernels, row: Row) -> None:
    """Rows that promise neither must be right in each run nevertheless."""
    wrong: list[str] = []
    for each in [c for c in (*ALL, SHARED, DEPTHWISE) if takes(row, c)]:
        of_isa: dict[str, bytes] = {}
        for isa in row.isas:
            results = [
                kernels.run(row, each, stored(each), isa, threads, channels_last=row.reads_channels_last and threads % 2 > 0)
                for threads in THREADS
            ]
            of_isa[isa] = results[0].tobytes()
            if row.fixed_order:
                wrong += [
                    f"{each} {isa}: {n} threads" for n, r in zip(THREADS, results, strict=True) if r.tobytes() != of_isa[isa]
                ]
            wrong += [text for r in results if (text := within(kernels, row, each, r))]
        if row.same_on_every_isa:
            wrong += [f"{each}: {isa} is not {row.isas[0]}" for isa in row.isas if of_isa[isa] != of_isa[row.isas[0]]]
    assert not wrong


def test_transposed(kernels: Kernels, row: Row) -> None:
    """fprop of a transposed convolution is backward_data, and dgrad is forward: taken and right, or refused with a reason."""
    op = {FORWARD: BACKWARD_DATA, BACKWARD_DATA: FORWARD}.get(row.op, row.op)
    for each in (c for c in ALL if takes(row, c)):
        refused = kernels.reasons(row, each, op)
        assert not (refused and row.algorithm in BOTH_WAYS), each
        if not refused:
            assert not within(kernels, row, each, kernels.run(row, each, stored(each), op=op), op)


def test_touches_nothing_but_its_result(kernels: Kernels, row: Row) -> None:
    """Tensors need not lie on any boundary, and what lies before and after them is not theirs."""
    room, target = 64, TARGETS[row.op]
    chosen = (CASES[0], CASES[3], CASES[4], CASES[13], CASES[15], OTHER_CASES[1], OTHER_CASES[14])
    for each, isa in product((c for c in chosen if takes(row, c)), row.isas):
        given = stored(each)
        whole = [np.full(t.size + 2 * room + 1, garbage(t.dtype), t.dtype) for t in given]
        inside = [t[room + 1 : room + 1 + g.size].reshape(g.shape) for t, g in zip(whole, given, strict=True)]
        for i, t in enumerate(inside):
            if i != target:
                t[...] = given[i]
        before = [t.copy() for t in whole]
        kernels.run_in_place(row, each, inside, isa, threads=3)
        assert not within(kernels, row, each, inside[target])
        inside[target][...] = garbage(given[target].dtype)
        assert [t.tobytes() for t in whole] == [t.tobytes() for t in before], (each, isa)

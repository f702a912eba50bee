"""Rows that read channels_last or add a bias: the same values as channels-first, and as an addition afterwards."""

import numpy as np
import pytest
from cases import CASES, OTHER_CASES, case
from checks import Tensors, distance, largest, stored, takes, truth

from kernels import ROWS, TARGETS, Epilogue, Kernels, Row

SHARED = (
    case(3, 40, 40, (13, 14), 3, padding=1, groups=40),
    case(9, 6, 6, (5, 7), (3, 5), (1, 2), 2, groups=6),
    case(2, 20, 18, (13, 14), 3, padding=1),
)
EMPTY = (case(2, 0, 5, (8, 9), 3, padding=1), case(0, 4, 5, (8, 9), 3, padding=1))
ROW = pytest.mark.parametrize("row", ROWS, indirect=True)


def test_there_are_some(kernels: Kernels) -> None:
    assert {row.op for row in kernels.rows if row.reads_channels_last} == {0, 1, 2}
    assert {row.op for row in kernels.rows if row.finishes} >= {0, 1}


@ROW
def test_right_and_the_same_bits(kernels: Kernels, row: Row) -> None:
    """On every instruction set, for any number of threads."""
    wrong = []
    for each in (c for c in (*CASES, *OTHER_CASES, *SHARED) if row.reads_channels_last and takes(row, c)):
        right, given = truth(kernels, row.op, each), stored(each)
        bound = kernels.error(row, each) * largest(right)
        runs = [(isa, threads) for isa in row.isas for threads in (1, 5)]
        results = [kernels.run(row, each, given, isa, threads, channels_last=True) for isa, threads in runs]
        wrong += [f"{each} {run}" for run, r in zip(runs, results, strict=True) if not distance(r, right) <= bound]
        if row.fixed_order and row.same_on_every_isa and len({r.tobytes() for r in results}) != 1:
            wrong.append(f"{each}: different bits")
    assert not wrong


@ROW
def test_not_finite_where_channels_first_is_not(kernels: Kernels, row: Row) -> None:
    for each in (c for c in (*CASES, *SHARED) if row.reads_channels_last and takes(row, c) and c.n):
        given = changed(stored(each), lambda tensor: tensor.flat.__setitem__([0, tensor.size // 2], (np.inf, np.nan)), 0, 1, 2)
        found, right = (kernels.run(row, each, given, threads=2, channels_last=last) for last in (True, False))
        for which in (np.isnan, np.isposinf, np.isneginf):
            assert (which(found) == which(right)).all(), each


@ROW
def test_a_bias_is_added_as_if_afterwards_and_once(kernels: Kernels, row: Row) -> None:
    """Also where the result is computed again, and to images so small that a row scales them: the bias is not scaled."""
    if row.op == 2 or not row.fixed_order:
        return
    target, image = TARGETS[row.op], 2 - TARGETS[row.op]
    for each in (c for c in (*CASES, *OTHER_CASES, *EMPTY) if takes(row, c) and c.dtype == "float32" and len(c.size) == 2):
        kinds = [stored(each)]
        if each.dtype == "float32" and each.n and each in CASES[:8]:
            kinds.append(changed(kinds[0], lambda tensor: tensor.__imul__(np.float32(1e-38)), image))
            kinds.append(changed(kinds[0], lambda tensor: tensor.flat.__setitem__(0, np.inf), image))
        bias = np.linspace(1, 5, each.shapes[target][1], dtype=np.float32)
        for given in kinds:
            for last in (False, True):
                plain = kernels.run(row, each, given, threads=2, channels_last=last)
                found = kernels.run(row, each, given, threads=2, channels_last=last, epilogue=Epilogue(shift=bias))
                np.testing.assert_array_equal(found, plain + bias[:, None, None], str((each, last)))


def changed(given: Tensors, change: object, *places: int) -> Tensors:
    copies = [t.copy() for t in given]
    for place in places:
        if copies[place].size:
            change(copies[place])  # type: ignore[operator]
    return copies[0], copies[1], copies[2]

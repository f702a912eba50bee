"""Rows that read channels_last: the same values as channels-first, on every instruction set, for any number of threads."""

import numpy as np
from cases import CASES, OTHER_CASES, case
from checks import distance, largest, stored, takes, truth

from kernels import Kernels, Row

SHARED = (
    case(3, 40, 40, (13, 14), 3, padding=1, groups=40),
    case(9, 6, 6, (5, 7), (3, 5), (1, 2), 2, groups=6),
    case(2, 20, 18, (13, 14), 3, padding=1),
)


def rows(kernels: Kernels) -> list[Row]:
    return [row for row in kernels.rows if row.reads_channels_last]


def test_there_are_some(kernels: Kernels) -> None:
    assert {row.direction for row in rows(kernels)} == {0, 1, 2}


def test_right_and_the_same_bits(kernels: Kernels) -> None:
    wrong = []
    for row in rows(kernels):
        for each in (c for c in (*CASES, *OTHER_CASES, *SHARED) if takes(row, c)):
            right, given = truth(kernels, row.direction, each), stored(each)
            bound = kernels.error(row, each) * largest(right)
            runs = [(isa, threads) for isa in row.isas for threads in (1, 2, 5)]
            results = [kernels.run(row, each, given, isa, threads, channels_last=True) for isa, threads in runs]
            wrong += [f"{row} {each} {run}" for run, r in zip(runs, results, strict=True) if not distance(r, right) <= bound]
            if row.fixed_order and row.same_on_every_isa and len({r.tobytes() for r in results}) != 1:
                wrong.append(f"{row} {each}: different bits")
    assert not wrong


def test_not_finite_where_channels_first_is_not(kernels: Kernels) -> None:
    for row in rows(kernels):
        for each in (c for c in (*CASES, *SHARED) if takes(row, c) and c.n):
            given = [t.copy() for t in stored(each)]
            for tensor in given:
                tensor.flat[[0, tensor.size // 2]] = np.inf, np.nan
            found, right = (kernels.run(row, each, tuple(given), threads=2, channels_last=last) for last in (True, False))
            for which in (np.isnan, np.isposinf, np.isneginf):
                assert (which(found) == which(right)).all(), (row, each)

"""Rows that add the bias of a forward convolution: the bits are those of an addition afterwards."""

import numpy as np
from cases import CASES, OTHER_CASES, case
from checks import stored, takes

from kernels import Kernels, Row

EMPTY = (case(2, 0, 5, (8, 9), 3, padding=1), case(0, 4, 5, (8, 9), 3, padding=1))
TARGETS = (2, 0)  # y of fprop; x of dgrad, which is what a transposed convolution runs


def rows(kernels: Kernels) -> list[Row]:
    return [row for row in kernels.rows if row.adds_bias and row.direction in (0, 1)]


def test_there_are_some(kernels: Kernels) -> None:
    assert {row.direction for row in rows(kernels)} == {0, 1}


def test_as_if_added_afterwards(kernels: Kernels) -> None:
    for row in rows(kernels):
        for each in (c for c in (*CASES, *OTHER_CASES, *EMPTY) if takes(row, c)):
            bias = np.linspace(-3, 5, each.shapes[TARGETS[row.direction]][1], dtype=np.float32)
            given = stored(each)
            for last in (False, True):
                plain = kernels.run(row, each, given, threads=2, channels_last=last)
                found = kernels.run(row, each, given, threads=2, channels_last=last, bias=bias)
                assert (found == plain + bias[:, None, None]).all(), (row, each, last)


def test_of_images_that_are_tiny_throughout(kernels: Kernels) -> None:
    """Which some rows are given in another scale: the bias is not."""
    for row in rows(kernels):
        for each in (c for c in CASES if takes(row, c) and c.n):
            given = [t.copy() for t in stored(each)]
            given[2 - TARGETS[row.direction]] *= np.float32(1e-38)
            bias = np.linspace(1, 5, each.shapes[TARGETS[row.direction]][1], dtype=np.float32)
            for last in (False, True):
                found = kernels.run(row, each, tuple(given), channels_last=last, bias=bias)
                np.testing.assert_array_equal(found, np.broadcast_to(bias[:, None, None], found.shape), str(row))


def test_once_where_the_result_is_computed_again(kernels: Kernels) -> None:
    for row in rows(kernels):
        for each in (c for c in CASES if takes(row, c) and c.n):
            given = [t.copy() for t in stored(each)]
            given[2 - TARGETS[row.direction]].flat[0] = np.inf
            bias = np.linspace(-3, 5, each.shapes[TARGETS[row.direction]][1], dtype=np.float32)
            for last in (False, True):
                plain = kernels.run(row, each, tuple(given), channels_last=last)
                found = kernels.run(row, each, tuple(given), channels_last=last, bias=bias)
                np.testing.assert_array_equal(found, plain + bias[:, None, None], str(row))

"""The error that each row promises, over all kinds of data; what is smaller than the smallest normal number is not lost."""

from functools import cache
from itertools import product

import numpy as np
import pytest
from cases import CASES, DATA, Case, case, data
from checks import Tensors, distance, largest, stored, takes, terms, truth, truth_of

from kernels import BACKWARD_WEIGHT, FACTORS, ROWS, Kernels, Row

BOUND_CASES = (
    *(CASES[i] for i in (0, 2, 3, 5, 6, 10)),
    case(1, 200, 24, 10, 3, padding=1),
    case(2, 300, 40, 6, 1),
    case(1, 8, 200, 8, 5, padding=2),
    case(1, 48, 64, (17, 19), 3, 2, 1),
    case(2, 384, 8, 6, 3, padding=1),
    case(1, 4, 4, (40, 45), 3, padding=1),
)
DENORMAL = 2.0**-149
AMPLIFIED = 4
"""How often a Winograd transform back multiplies what its products have lost below the smallest normal number."""

pytestmark = pytest.mark.parametrize("row", ROWS, indirect=True)


def underflow(row: Row, each: Case) -> float:
    """What rounding may cost where numbers cannot be relatively exact: about half the smallest one for each product."""
    return terms(row.op, each) * DENORMAL * (AMPLIFIED if row.algorithm.startswith("winograd") else 1)


def excess(kernels: Kernels, row: Row, each: Case, given: Tensors, right: np.ndarray) -> float:
    """The largest error in units of the one allowed. Other instruction sets have the same bits, or are tried as well."""
    isas = row.isas[:1] if row.same_on_every_isa else row.isas
    allowed = kernels.error(row, each) * largest(right) + underflow(row, each)
    return max(distance(kernels.run(row, each, given, isa), right) / allowed for isa in isas)


@cache
def problem(kernels: Kernels, op: int, each: Case, kind: str) -> tuple[Tensors, np.ndarray]:
    """With one outlier, in one factor: two that never meet are what a transform's bound does not speak of."""
    if kind != "outlier":
        return stored(each, kind), truth(kernels, op, each, kind)
    given = [t.copy() for t in stored(each)]
    factor = given[FACTORS[op][0]]
    factor.flat[np.random.default_rng(5).integers(factor.size)] = 1e4
    found = given[0], given[1], given[2]
    return found, truth_of(kernels, op, each, found)


@pytest.mark.full
def test_error_is_what_the_row_says(kernels: Kernels, row: Row) -> None:
    wrong = []
    for each, kind in product((c for c in BOUND_CASES if takes(row, c)), DATA):
        found = excess(kernels, row, each, *problem(kernels, row.op, each, kind))
        wrong += [f"{kind} {each}: {found:.3g} times what is allowed"] if not found <= 1 else []
    assert not wrong


def test_bounds_are_small(kernels: Kernels, row: Row) -> None:
    assert all(2.0**-25 < kernels.error(row, c) < 1.1e-3 for c in BOUND_CASES if takes(row, c))


def test_denormal_inputs_are_not_flushed(kernels: Kernels, row: Row) -> None:
    """One factor is denormal throughout, the other of size one: a row that takes it for zero has zeros for its result."""
    for each, index in product((c for c in (CASES[0], CASES[3], CASES[2]) if takes(row, c)), FACTORS[row.op]):
        given = list(stored(each))
        generator = np.random.default_rng(3)
        given[index] = (data(given[index].shape, "uniform", generator) * 1e-39).astype(np.float32)
        assert 0 < given[index].max() < 2.0**-126
        right = truth_of(kernels, row.op, each, tuple(given))
        lost = 2 * terms(row.op, each) * 2.0**-149
        assert lost < largest(right) / (2 if row.op == BACKWARD_WEIGHT else 10)
        for isa in row.isas:
            result = kernels.run(row, each, tuple(given), isa)
            assert distance(result, right) <= kernels.error(row, each) * largest(right) + lost


def test_products_that_vanish_are_zeros(kernels: Kernels, row: Row) -> None:
    """Nothing is left of them: no scale of theirs may be infinite, and no result be forgotten."""
    taken = (c for c in CASES[:6] if takes(row, c) and c.dtype == "float32")
    for each, scales in product(taken, ((1e-42, 1e-42), (1e-36, 1e-36), (0, 1e-36), (1e-42, 0))):
        given = list(stored(each, "uniform"))
        for index, scale in zip(FACTORS[row.op], scales, strict=True):
            given[index] = (given[index].astype(np.float64) * scale).astype(np.float32)
        for isa in row.isas:
            assert (np.abs(kernels.run(row, each, tuple(given), isa)) <= 1e-40).all(), (isa, each, scales)


@pytest.mark.full
def test_channels_scaled_in_opposite_ways(kernels: Kernels, row: Row) -> None:
    """Large values meet small weights, as after folding a normalisation; or weights in an order of their own."""
    if row.op == BACKWARD_WEIGHT:
        return  # sums over positions
    source, along = FACTORS[row.op][0], 1 - row.op
    generator = np.random.default_rng(6)
    problems = (case(2, 64, 32, (18, 17), 3, padding=1), case(1, 100, 20, (9, 12), 3))
    for each, decades in product((c for c in problems if takes(row, c)), (1, 3, 6)):
        for is_own in (False, True):
            given = [t.copy() for t in stored(each)]
            scale = np.logspace(0, decades, given[source].shape[1], dtype=np.float32)
            given[source] *= scale[:, None, None]
            other = np.moveaxis(given[1], along, 0)
            other /= (generator.permutation(scale) if is_own else scale)[:, None, None, None]
            right = truth_of(kernels, row.op, each, tuple(given))
            for isa in row.isas:
                result = kernels.run(row, each, tuple(given), isa)
                assert distance(result, right) <= kernels.error(row, each) * largest(right), (isa, each, is_own)

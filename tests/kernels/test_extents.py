"""Extents that are zero, and problems drawn at random."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from cases import Case, case
from checks import Tensors, distance, largest, stored, takes, truth_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels import DTYPES, OPS, PRODUCT, ROWS, TARGETS, Kernels, Row, widen

EMPTY = (
    case(0, 4, 4, 8, 3, padding=1),
    case(0, 2, 6, (7, 9), 5, padding=2, groups=2),
    case(0, 3, 2, 6, (2, 3), 2, 1),
    case(2, 0, 4, 6, 3, padding=1),
    case(2, 4, 0, 6, 3, padding=1),
    case(2, 0, 0, 6, 3, padding=1, groups=2),
    case(2, 3, 4, (0, 5), 3, padding=(2, 1)),  # no image, but padding enough for a window
    case(2, 3, 4, (2, 5), 3),  # an image too small for a window
    case(2, 3, 4, (5, 4), (3, 5)),
    case(1, 3, 4, (0, 0), 1),
)


@pytest.mark.parametrize("row", ROWS, indirect=True)
def test_sums_of_nothing_are_zeros(kernels: Kernels, row: Row) -> None:
    wrong = []
    for each in (c for c in EMPTY if takes(row, c)):
        assert 0 in each.shapes[0] + each.shapes[1] + each.shapes[2]
        for isa in row.isas:
            for threads in (1, 3):
                result = kernels.run(row, each, stored(each), isa, threads)
                assert result.shape == each.shapes[TARGETS[row.op]]
                wrong += [f"{each} {isa}"] if result.any() else []  # NaN is something, too
    assert not wrong


@st.composite
def geometries(draw: st.DrawFn) -> Case:
    """Anything with a window that fits; small, for the slow reference is run on it."""
    axes = draw(st.sampled_from((2, 2, 2, 1, 3)))
    most = {1: 50, 2: 21, 3: 7}[axes]

    def each(*values: int) -> tuple[int, ...]:
        return tuple(draw(st.sampled_from(values)) for _ in range(axes))

    window = draw(st.sampled_from(((3,) * axes, (5,) * axes, None))) or each(1, 2, 3, 4, 7)
    plain = draw(st.booleans())  # or Winograd's would be drawn rarely
    stride, dilation = ((1,) * axes,) * 2 if plain else (each(1, 2, 3, 5), each(1, 2, 3, 4))
    padding = each(0, 1, 2, 5)
    least = [max(1, d * (w - 1) + 1 - 2 * p) for w, p, d in zip(window, padding, dilation, strict=True)]
    size = tuple(draw(st.integers(low, max(low, most))) for low in least)
    groups = draw(st.sampled_from((1, 1, 2, 3)))
    n, c, k = (draw(st.sampled_from(v)) for v in ((0, 1, 2, 3), (1, 2, 3, 8, 17), (1, 2, 5, 9, 19)))
    dtype = draw(st.sampled_from(("float32", "float32", *DTYPES)))
    return Case(n, c * groups, k * groups, size, window, stride, padding, dilation, groups, dtype)


@pytest.mark.parametrize("examples", [20, pytest.param(60, marks=pytest.mark.full)])
def test_any_geometry(kernels: Kernels, examples: int) -> None:
    """Right on one instruction set, the same bits on the others."""

    @settings(max_examples=examples, suppress_health_check=[HealthCheck.too_slow])
    @given(each=geometries(), seed=st.integers(0, 9), threads=st.sampled_from((2, 3, 8)))
    def check(each: Case, seed: int, threads: int) -> None:
        values = stored(each, "normal", seed)
        for op in OPS:
            right = truth_of(kernels, op, each, values)
            size = max(largest(right), usual(kernels, op, each, values))
            for row in (r for r in kernels.rows if r.op == op and not kernels.reasons(r, each)):
                if row.direction == PRODUCT and row.algorithm.startswith("tiles"):
                    continue  # in software, and in parts alone another than fprop's
                assert takes(row, each), row
                runs = zip(row.isas, (1, threads, threads), strict=False)
                results = {isa: kernels.run(row, each, values, isa, t) for isa, t in runs}
                for isa, result in results.items():
                    assert distance(result, right) <= kernels.error(row, each) * size, (row, isa)
                if row.same_on_every_isa:
                    assert len({result.tobytes() for result in results.values()}) == 1, row

    check()


FAR = (
    Case(1, 4, 6, (8, 8), (3, 3), (2**20, 2**30), (1, 1), (1, 1)),
    Case(1, 4, 4, (8, 8), (3, 3), (4096, 4096), (1, 1), (1, 1), 4),
    Case(1, 4, 6, (70, 9), (3, 3), (65, 1), (1, 1), (1, 1)),
    Case(1, 2, 3, (8, 8), (3, 3), (5000, 5000), (5000, 5000), (1, 1)),
    Case(1, 4, 4, (8, 8), (3, 3), (2500, 2500), (2500, 2500), (2500, 2500), 4),
    Case(1, 2, 3, (8, 8), (3, 3), (1000, 1000), (4000, 4000), (4000, 4000)),
)


def test_far_apart(kernels: Kernels) -> None:
    """Nobody takes memory or time for what lies around an image, or between its elements."""
    for each, op in product(FAR, OPS):
        values = stored(each)
        right = truth_of(kernels, op, each, values)
        for row in (r for r in kernels.rows if r.op == op and not kernels.reasons(r, each)):
            assert kernels.workspace(row, each) < 2**29, row
            assert distance(kernels.run(row, each, values), right) <= kernels.error(row, each) * max(largest(right), 1), row


def usual(kernels: Kernels, op: int, each: Case, values: Tensors) -> float:
    """The size that results have unless their products cancel: with few results it may be that all do, and no bound holds."""
    x, w, y = (widen(t) ** 2 for t in values)
    return float(np.sqrt(largest(truth_of(kernels, op, replace(each, dtype="float64"), (x, w, y)))))

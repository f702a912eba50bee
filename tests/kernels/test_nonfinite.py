"""NaN, Inf and what overflows: where torch's float64 convolution has them, rounded to float32, and nowhere else."""

from collections.abc import Callable

import numpy as np
import pytest
from by_torch import by_torch
from cases import Case, case, tensors
from checks import Array, Tensors, takes
from kernels import FORWARD, ROWS, Kernels, Row

NONFINITE = (
    case(2, 5, 6, (14, 15), 3, padding=1),
    case(2, 4, 3, (12, 11), 3),
    case(1, 3, 4, (16, 13), 5, padding=2),
    case(1, 6, 4, (9, 8), 3, padding=(4, 5)),
    case(2, 4, 6, (13, 12), 3, 2, 1, groups=2),
    case(1, 4, 4, (15, 16), 3, 1, 2, 2),
    case(1, 3, 4, (10, 12), 1),
    case(1, 2, 2, (40, 45), 3, padding=1),
    case(1, 2, 2, (9, 33), (2, 5), (3, 2), (1, 4), (1, 3)),
)
INF, NAN = np.inf, np.nan
LARGE = 3e38
"""Twice that is more than float32 can hold."""

pytestmark = pytest.mark.parametrize("row", ROWS, indirect=True)


def wrong(kernels: Kernels, row: Row, each: Case, given: Tensors) -> list[str]:
    """What differs from torch; finite results may have the row's error."""
    with np.errstate(over="ignore"):
        right: Array = by_torch(row.direction, each, given).astype(np.float32).astype(np.float64)
    finite = np.isfinite(right)
    bound = kernels.error(row, each) * float(np.abs(right[finite]).max(initial=0.0))
    found = []
    for isa in kernels.isas:
        result = kernels.run(row, each, given, isa, threads=2).astype(np.float64)
        for name, which in (("NaN", np.isnan), ("Inf", np.isposinf), ("-Inf", np.isneginf)):
            if (count := int((which(result) != which(right)).sum())) > 0:
                found.append(f"{each} {isa}: {count} of {right.size} are {name} in one only")
        both = finite & np.isfinite(result)
        if not np.abs(result - right)[both].max(initial=0.0) <= bound:
            found.append(f"{each} {isa}: the finite ones are wrong")
    return found


def given(each: Case) -> list[Array]:
    return [t.astype(np.float32) for t in tensors(each)]


def every(kernels: Kernels, row: Row, change: Callable[[list[Array]], None]) -> list[str]:
    found: list[str] = []
    for each in (c for c in NONFINITE if takes(row, c)):
        values = given(each)
        change(values)
        found += wrong(kernels, row, each, (values[0], values[1], values[2]))
    return found


@pytest.mark.parametrize("value", [INF, -INF, NAN], ids=str)
@pytest.mark.parametrize("factor", ["x", "w", "y"])
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_one_of_them(kernels: Kernels, row: Row, factor: str, value: float, place: str) -> None:
    """In a corner, where only few results meet it, or in the middle. In padding there are zeros: times Inf that is NaN."""

    def change(values: list[Array]) -> None:
        tensor = values["xwy".index(factor)]
        tensor.flat[{"first": 0, "middle": tensor.size // 2, "last": tensor.size - 1}[place]] = value

    assert not every(kernels, row, change)


def test_several_that_meet(kernels: Kernels, row: Row) -> None:
    """Inf less Inf is NaN, and a NaN beside an Inf stays one."""

    def change(values: list[Array]) -> None:
        for tensor, found in zip(values, ((INF, -INF), (INF, 1.0), (NAN, INF)), strict=True):
            tensor.flat[tensor.size // 3], tensor.flat[tensor.size // 3 + 1] = found

    assert not every(kernels, row, change)


def test_zero_times_inf(kernels: Kernels, row: Row) -> None:
    def change(values: list[Array]) -> None:
        values[0].flat[::3], values[1].flat[::2], values[2].flat[::3] = 0.0, 0.0, 0.0
        for tensor in values[::2]:
            tensor.flat[1] = INF

    assert not every(kernels, row, change)


def test_transforms_that_overflow(kernels: Kernels, row: Row) -> None:
    """All results are finite, what a transform adds up on the way to them is not."""

    def change(values: list[Array]) -> None:
        for i, tensor in enumerate(values):
            signs = np.random.default_rng(i).choice([-1.0, 1.0], tensor.shape)
            tensor[...] = signs * (1e-7 if i == 1 else 1e38)
        values[2 if row.direction == FORWARD else 0][...] *= 1.0 if row.direction != 2 else 1e-45

    found: list[str] = []
    for each in (c for c in NONFINITE if takes(row, c)):
        values = given(each)
        change(values)
        if row.direction == 2:
            values[0][...] = np.sign(values[0]) * 2.0**-100
        right = by_torch(row.direction, each, (values[0], values[1], values[2]))
        assert np.abs(right).max() < 3e38
        found += wrong(kernels, row, each, (values[0], values[1], values[2]))
    assert not found


def test_sums_that_overflow(kernels: Kernels, row: Row) -> None:
    """One of the large ones alone can be held, two that meet cannot: Inf exactly there."""
    large = 0 if row.direction != 1 else 2
    found: list[str] = []
    for each in (c for c in NONFINITE if takes(row, c)):
        values = given(each)
        other = 1 if row.direction != 2 else 2
        values[other][...] = 1.0
        tensor = values[large]
        tensor[...] = 0.0
        tensor.flat[:: max(7, tensor.size // 9)] = LARGE
        tensor.flat[1] = LARGE
        values[large][...] *= -1.0 if each.c % 2 else 1.0
        right = by_torch(row.direction, each, (values[0], values[1], values[2]))
        assert each.window == (1, 1) or np.abs(right).max() > 4e38
        found += wrong(kernels, row, each, (values[0], values[1], values[2]))
    assert not found


def test_computed_again_only_where_it_must_be(kernels: Kernels, row: Row) -> None:
    """Finite results are not; those of a row that spreads an Inf over a tile are."""
    each = NONFINITE[0]
    values = given(each)
    assert not kernels.run_in_place(row, each, [t.copy() for t in values])
    values[1 if row.direction != 2 else 2].flat[0] = INF
    again = kernels.run_in_place(row, each, values)
    assert again == row.algorithm.startswith(("winograd", "fft"))

"""NaN, Inf and what overflows: where torch's float64 convolution has them, rounded to float32, and nowhere else."""

from collections.abc import Callable
from functools import cache
from itertools import product

import numpy as np
import pytest
from by_torch import by_torch
from cases import Case, case, tensors
from checks import Array, Tensors, takes

from kernels import FACTORS, ROWS, TARGETS, Kernels, Row

NONFINITE = (
    case(2, 5, 6, (14, 15), 3, padding=1),
    case(2, 5, 17, (14, 15), 3, 2, 1),
    case(2, 4, 3, (12, 11), 3),
    case(1, 3, 4, (16, 13), 5, padding=2),
    case(1, 6, 4, (9, 8), 3, padding=(4, 5)),  # some windows hold nothing but padding
    case(1, 2, 3, (1, 7), 3, padding=1),  # some taps meet nothing but padding
    case(2, 4, 6, (13, 12), 3, 2, 1, groups=2),
    case(1, 4, 4, (15, 16), 3, 1, 2, 2),
    case(1, 3, 4, (10, 12), 1),
    case(1, 2, 2, (40, 45), 3, padding=1),
    case(1, 2, 2, (9, 33), (2, 5), (3, 2), (1, 4), (1, 3)),
    case(2, 5, 5, (9, 15), 3, padding=(4, 1), groups=5),
    case(1, 3, 6, (11, 10), (4, 7), 2, (2, 5), groups=3),
    case(1, 18, 18, (5, 6), (9, 7), (1, 2), (4, 8), (1, 2), groups=18),
)
INF, NAN = np.inf, np.nan
LARGE = 3e38
"""Twice that is more than float32 can hold."""

CHANGES: dict[str, Callable[[Array, Array, int], object]] = {}
"""What is done to the two factors of an operation; the number is the case's."""


def change(function: Callable[[Array, Array, int], object]) -> Callable[[Array, Array, int], object]:
    CHANGES[function.__name__] = function
    return function


for _value, _place, _which in product((INF, NAN), ("first", "middle", "last"), (0, 1)):

    def _one(a: Array, b: Array, number: int, value: float = _value, place: str = _place, which: int = _which) -> None:
        factor = (a, b)[which]
        factor.flat[{"first": 0, "middle": factor.size // 2, "last": factor.size - 1}[place]] = -value if number % 2 else value

    CHANGES[f"{_value} {_place} of factor {_which}"] = _one


@change
def several_that_meet(a: Array, b: Array, _: int) -> None:
    """Inf less Inf is NaN, and a NaN beside an Inf stays one."""
    for factor, values in ((a, (INF, -INF, NAN)), (b, (INF, 1.0, -INF))):
        factor.flat[factor.size // 3 : factor.size // 3 + 3] = values[: min(3, factor.size - factor.size // 3)]


@change
def zero_times_inf(a: Array, b: Array, _: int) -> None:
    a.flat[::3], b.flat[::2] = 0.0, 0.0
    a.flat[1], b.flat[b.size - 1] = INF, -INF


@change
def overflows_on_the_way(a: Array, b: Array, number: int) -> None:
    """All results are finite, what a transform adds up before it has them is not."""
    generator = np.random.default_rng(number)
    a[...] = generator.choice([-1e38, 1e38], a.shape)
    b[...] = generator.choice([-1e-7, 1e-7], b.shape)


@change
def two_are_too_much(a: Array, b: Array, number: int) -> None:
    """One of the large ones alone can be held, two that meet cannot: Inf exactly there."""
    a[...], b[...] = 0.0, 1.0
    a.flat[:: max(7, a.size // 9)] = LARGE
    a.flat[1] = LARGE
    a *= -1.0 if number % 2 else 1.0


@change
def beside_an_overflow(a: Array, b: Array, number: int) -> None:
    """Few results overflow; the others are usual ones, which what is cut below the largest values would take with it."""
    a[...], b[...] = 1e18, 1.0
    b.flat[0] = -1e32 if number % 2 else 1e32


@cache
def problem(name: str, op: int, number: int) -> tuple[Tensors, Array]:
    """x, w and y, and the result rounded to float32."""
    x, w, y = (t.astype(np.float32) for t in tensors(NONFINITE[number]))
    a, b = ((x, w, y)[i] for i in FACTORS[op])
    CHANGES[name](a, b, number)
    with np.errstate(over="ignore"):
        return (x, w, y), by_torch(op, NONFINITE[number], (x, w, y)).astype(np.float32)


def wrong(kernels: Kernels, row: Row, each: Case, isa: str, given: Tensors, right: Array) -> list[str]:
    """What differs; finite results may have the row's error."""
    finite = np.isfinite(right)
    bound = kernels.error(row, each) * float(np.abs(right[finite]).max(initial=0.0))
    last = row.reads_channels_last and each.n % 2 > 0
    result = kernels.run(row, each, given, isa, threads=2, channels_last=last)
    found = []
    for name, which in (("NaN", np.isnan), ("Inf", np.isposinf), ("-Inf", np.isneginf)):
        if (count := int((which(result) != which(right)).sum())) > 0:
            found.append(f"{each} {isa}: {count} of {right.size} are {name} in one only")
    both = finite & np.isfinite(result)
    if not np.abs(result[both].astype(np.float64) - right[both]).max(initial=0.0) <= bound:
        found.append(f"{each} {isa}: the finite ones are wrong")
    return found


@pytest.mark.parametrize("row", ROWS, indirect=True)
def test_where_torch_has_them(kernels: Kernels, row: Row) -> None:
    found: list[str] = []
    for (number, each), (i, which) in product(enumerate(NONFINITE), enumerate(CHANGES)):
        if takes(row, each):
            isa = row.isas[(number + i) % len(row.isas)]  # in turn
            texts = wrong(kernels, row, each, isa, *problem(which, row.op, number))
            found += [f"{which}: {text}" for text in texts]
    assert not found


@pytest.mark.parametrize("row", ROWS, indirect=True)
def test_computed_again_only_where_it_must_be(kernels: Kernels, row: Row) -> None:
    """Finite results are not; those of a row that spreads an Inf over a tile are."""
    each = next(c for c in NONFINITE if takes(row, c))
    values = [t.astype(np.float32) for t in tensors(each)]
    assert not kernels.run_in_place(row, each, [t.copy() for t in values])
    values[FACTORS[row.op][1]].flat[0] = INF
    values[TARGETS[row.op]][...] = 0.0
    assert kernels.run_in_place(row, each, values) == row.algorithm.startswith(("winograd", "fft", "tiles"))

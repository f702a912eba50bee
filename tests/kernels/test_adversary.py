"""No data breaks the bound that a row states: blocks of both factors are scaled, set or cleared, and what hurts most is changed
further. ``ADVERSARY_ROUNDS=1000`` searches longer."""

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from cases import Case, case
from checks import Array, Tensors, distance, largest, stored, takes, terms, truth_of

from kernels import BACKWARD_WEIGHT, FACTORS, FORWARD, ROWS, Kernels, Row

ATTACKED = (
    case(1, 2, 3, (1, 9), 3, padding=1),  # taps over padding alone
    case(1, 3, 4, (2, 3), 5, padding=2),
    case(2, 4, 5, (10, 9), 3, 2),  # a row that no window reaches
    case(1, 5, 4, (8, 9), 2, 3),  # values between windows
    case(2, 8, 6, (7, 9), 3, padding=1),
    case(1, 40, 20, (5, 6), 3, padding=1),
    case(2, 6, 4, (9, 8), 3, 1, 2, 2, groups=2),
    case(1, 1, 2, (14, 12), 9, padding=4),
    case(2, 6, 6, (9, 10), 3, padding=1, groups=6),
)
LARGE = (case(1, 2, 2, (32, 32), 3, padding=1), case(1, 2, 2, (32, 32), 5, padding=2))
BASES = ("normal", "uniform", "ones")
Change = tuple[int, tuple[Any, ...], float]
"""Which factor, which block of it, by what it is multiplied; 0 clears it."""


@dataclass(frozen=True)
class Attack:
    """What is done to *base*, the one change after the other."""

    base: str
    changes: tuple[Change, ...]

    def data(self, each: Case, op: int, seed: int = 0) -> Tensors:
        given = [t.copy() for t in stored(each, "normal" if self.base == "ones" else self.base, seed)]
        for which in FACTORS[op]:
            if self.base == "ones":
                given[which][...] = np.float32(0.7342051)
        for factor, block, times in self.changes:
            with np.errstate(over="ignore", under="ignore"):
                given[FACTORS[op][factor]][block] *= np.float32(times)
        for which in FACTORS[op]:  # what overflows is another test's
            np.clip(given[which], -1e18, 1e18, out=given[which])
        return given[0], given[1], given[2]


def _block(generator: np.random.Generator, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """All of an axis, one place of it, or what lies on one side."""

    def along(size: int) -> Any:
        at, kind = int(generator.integers(size)), generator.integers(4)
        return (slice(None), slice(at, at + 1), slice(0, at + 1), slice(at, None))[kind]

    return tuple(along(size) for size in shape)


def _change(generator: np.random.Generator, each: Case, op: int) -> Change:
    factor = int(generator.integers(2))
    times = 0.0 if generator.integers(3) == 0 else float(10.0 ** generator.choice([1, 2, 3, 4, 6, 9, 12, 15]))
    return factor, _block(generator, each.shapes[FACTORS[op][factor]]), times / (1e6 if generator.integers(6) == 0 else 1)


def mutated(generator: np.random.Generator, attack: Attack, each: Case, op: int) -> Attack:
    changes = list(attack.changes)
    kind = generator.integers(4)
    if kind == 0 and changes:
        changes.pop(int(generator.integers(len(changes))))
    elif kind == 1 and changes:
        changes[int(generator.integers(len(changes)))] = _change(generator, each, op)
    else:
        changes.append(_change(generator, each, op))
    return Attack(str(generator.choice(BASES)) if generator.integers(8) == 0 else attack.base, tuple(changes[-5:]))


def never_meeting(generator: np.random.Generator, each: Case) -> Tensors:
    """Images, and gradients of them, that are large in some rows, columns or squares each, the same distance apart."""
    period, width, along = int(generator.choice([4, 8, 16, 32])), int(generator.integers(1, 4)), generator.integers(3)

    def periodic(shape: tuple[int, ...]) -> Array:
        at = generator.integers(period)
        rows, columns = ((np.arange(size) - at) % period < width for size in shape[2:])
        large = (rows[:, None] | (along == 1)) & (columns | (along == 0))
        pattern = generator.standard_normal((period, period)) if generator.integers(2) else np.full((period, period), 0.7342051)
        tiled = np.tile(pattern, (-(-shape[2] // period), -(-shape[3] // period)))[: shape[2], : shape[3]]
        return np.broadcast_to(np.where(large, 1.0, 10.0 ** -generator.uniform(0.3, 4)) * tiled, shape).astype(np.float32)

    x, w, y = each.shapes
    return periodic(x), np.zeros(w, np.float32), periodic(y)


def unit(kernels: Kernels, op: int, each: Case, given: Tensors, right: Array) -> float:
    """What a bound is a part of: the largest result, or, where results cancel, the largest sum of the products' magnitudes."""
    sums = truth_of(kernels, op, each, (np.abs(given[0]), np.abs(given[1]), np.abs(given[2])))
    return max(largest(right), largest(sums))


def ratio(kernels: Kernels, row: Row, each: Case, given: Tensors, isa: str) -> float:
    """The error of the row in units of its bound."""
    right = truth_of(kernels, row.op, each, given)
    lost = 8 * terms(row.op, each) * 2.0**-149
    allowed = kernels.error(row, each) * unit(kernels, row.op, each, given, right) + lost
    if not allowed < 1e37:
        return 0.0
    return distance(kernels.run(row, each, given, isa), right) / allowed


def worst(kernels: Kernels, row: Row, each: Case, isa: str, rounds: int, seed: int = 0) -> tuple[float, Attack]:
    """A climb from plain data; it starts anew where it finds nothing better for a while."""
    generator = np.random.default_rng([seed, len(str(each)), row.op])
    best = found = Attack("normal", ())
    highest = here = 0.0
    since = 0
    for _ in range(rounds):
        attack = mutated(generator, found, each, row.op)
        value = ratio(kernels, row, each, attack.data(each, row.op), isa)
        if value > here:
            found, here, since = attack, value, 0
        elif (since := since + 1) > 25:
            found, here, since = Attack(str(generator.choice(BASES)), ()), 0.0, 0
        if value > highest:
            best, highest = attack, value
    return highest, best


ROUNDS = int(os.environ.get("ADVERSARY_ROUNDS", "6"))


@pytest.mark.parametrize("row", ROWS, indirect=True)
def test_no_data_breaks_the_bound(kernels: Kernels, row: Row) -> None:
    broken = []
    for isa in row.isas[:1] if row.same_on_every_isa else row.isas:
        for each in (c for c in ATTACKED if takes(row, c)):
            value, attack = worst(kernels, row, each, isa, ROUNDS)
            broken += [f"{isa}, {each}: {value:.3g} times the bound by {attack}"] if not value <= 1 else []
    assert not broken


@pytest.mark.parametrize("row", [row for row in ROWS if row.startswith("wgrad")], indirect=True)
def test_large_values_that_never_meet_do_not_break_the_bound(kernels: Kernels, row: Row) -> None:
    """Transforms round relatively to all values of a tile or an image; weight gradients are of those that meet."""
    broken = []
    for isa in row.isas[:1] if row.same_on_every_isa else row.isas:
        for each in (c for c in LARGE if takes(row, c)):
            for seed in range(10 * ROUNDS):
                value = ratio(kernels, row, each, never_meeting(np.random.default_rng(seed), each), isa)
                broken += [f"{isa}, {each}, seed {seed}: {value:.3g} times the bound"] if not value <= 1 else []
    assert not broken


@pytest.mark.parametrize("row", [row for row in ROWS if "tiles" in row], indirect=True)
def test_ordinary_data_is_computed_once(kernels: Kernels, row: Row) -> None:
    """The bound leaves room for it: what is cut of it is compared with sums of magnitudes, not with results that cancel."""
    draw = np.random.default_rng(0)
    for each in (case(1, 64, 64, (14, 14), 3, padding=1), case(1, 512, 64, (7, 7), 1), case(2, 128, 96, (9, 8), 3, padding=1)):
        if not takes(row, each):
            continue
        for isa in row.isas:
            given = [draw.standard_normal(s).astype(np.float32) for s in each.shapes]
            assert not kernels.run_in_place(row, each, given, isa), (isa, each)


@pytest.mark.parametrize("row", [row for row in ROWS if "tiles" in row], indirect=True)
def test_an_outlier_that_nothing_reads_costs_no_digits(kernels: Kernels, row: Row) -> None:
    """Sums of so few products that the outlier is never far above the mean: a tap over padding alone, and a row past the windows."""
    of_weights = row.op == BACKWARD_WEIGHT
    each = case(2, 4, 5, (10, 9), 3, 2) if of_weights else case(1, 2, 3, (1, 9), 3, padding=1)
    assert takes(row, each)
    x, w, y = (t.copy() for t in stored(each))
    (x if of_weights else w)[0, 0, 9 if of_weights else 0, 1] = 1e12
    right = truth_of(kernels, row.op, each, (x, w, y))
    assert largest(right) < 100, "it is read"
    for isa in row.isas:
        assert distance(kernels.run(row, each, (x, w, y), isa), right) <= kernels.error(row, each) * largest(right), isa


@pytest.mark.full
@pytest.mark.parametrize("row", ROWS, indirect=True)
def test_deep_sums_of_equal_values(kernels: Kernels, row: Row) -> None:
    """Equal products round in one direction, so that errors add up."""
    of_weights, draw, broken = row.op == BACKWARD_WEIGHT, np.random.default_rng(0), []
    channels = (400, 40) if row.op == FORWARD else (40, 400)  # the sums are over the 400
    each = next(
        one
        for one in (
            case(2, 3, 2, (60, 60), 3, padding=1) if of_weights else case(1, *channels, (4, 5), 3, padding=1),
            case(2, 3, 3, (60, 60), 3, padding=1, groups=3),
            case(1, 4, 4, (30, 30), 29, padding=14, groups=4),
            case(1, 4000, 40, (1, 20), 1),
        )
        if takes(row, one)
    )
    for _ in range(4):
        x, w, y = (np.full_like(t, value) for t, value in zip(stored(each), draw.uniform(1, 2, 3), strict=True))
        right = truth_of(kernels, row.op, each, (x, w, y))
        for isa in row.isas[:1] if row.same_on_every_isa else row.isas:
            part = distance(kernels.run(row, each, (x, w, y), isa), right) / largest(right)
            broken += [f"{isa}: {part:.3g}"] if part > kernels.error(row, each) else []
    assert not broken

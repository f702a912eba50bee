"""Data made to break a row's bound: blocks of both factors are scaled, set or cleared, and what hurts most is changed further."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from cases import Case, case
from checks import Array, Tensors, distance, largest, stored, terms, truth_of

from kernels import FACTORS, Kernels, Row

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
DEEP = (
    case(1, 64, 20, (4, 5), 1),
    case(1, 256, 256, (2, 3), 1),
    case(1, 1024, 40, (1, 2), 1),
    case(1, 40, 1024, (1, 2), 1),
    case(1, 256, 32, (6, 6), 3, padding=1),
    case(1, 32, 256, (6, 6), 3, padding=1),
    case(1, 64, 64, (9, 9), 3, padding=1),
    case(4, 8, 8, (16, 16), 1),
    case(4, 4, 4, (16, 16), 3, padding=1),
    case(1, 1, 1, (16, 16), 9, padding=4),
    case(2, 6, 6, (16, 16), 3, padding=1, groups=6),
    case(1, 2, 2, (32, 32), 3, padding=1),
    case(1, 2, 2, (32, 32), 5, padding=2),
)
"""Sums of many products, along channels or positions."""
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

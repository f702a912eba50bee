"""The bound that each row states, on data that is made to break it; ``ADVERSARY_ROUNDS=1000`` searches longer."""

import os

import numpy as np
import pytest
from adversary import ATTACKED, DEEP, never_meeting, ratio, worst
from cases import case
from checks import distance, largest, stored, takes, truth_of

from kernels import BACKWARD_WEIGHT, FORWARD, ROWS, Kernels, Row

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
        for each in (c for c in DEEP if takes(row, c) and c.size == (32, 32)):
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

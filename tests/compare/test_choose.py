"""Which choice is taken: on measurements made up here, each with the rounds that its figures come from."""

from __future__ import annotations

import random
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from comparisons import SMALL, cell, made, result, row

from msctx.compare import choose
from msctx.compare.measure import ratio_of
from msctx.compare.result import Cell, PointOptions, Row

ROUNDS = 9


def rows(
    *figures: dict[str, tuple[float, float]], seed: int = 0, control: float = 0.01, errors: dict[str, float] | None = None
) -> list[Row]:
    """A row for each dictionary: choice → how many times as fast as torch, and how noisy its rounds are; 0 times: it has no time.

    Args:
        control: how noisy torch itself is.
    """
    chance = random.Random(seed)

    def times(speed: float, noise: float) -> list[float]:
        return [10.0 / speed * max(0.2, chance.gauss(1, noise)) for _ in range(ROUNDS)]

    def measured(name: str, base: list[float], speed: float, noise: float) -> Cell:
        own = times(speed, noise)
        ratio, spread = ratio_of(base, own)
        error = (errors or {}).get(name, 1e-7)
        return cell(name, ratio, error, spread=spread, times=own, asked={"conv_fprop_algo": name})

    found = []
    for each in figures:
        base, again = times(1.0, control), times(1.0, control)
        ratio, spread = ratio_of(base, again)
        cells = [measured(name, base, *one) if one[0] else cell(name) for name, one in each.items()]
        found.append(row("first", cells, 1, statistics.median(base), control=ratio, control_spread=spread, rounds=ROUNDS))
    return found


def taken(found: list[Row], **options: dict[str, Any]) -> str:
    """The choice for all rows; how many options each sets is 1 unless said."""
    names = [one.point for one in found[0].cells]
    points = [PointOptions(name=name, options=options.get(name, {"some": 1})) for name in names]
    plan, ratio = choose.best(found, choose.for_all(found, points))
    assert (plan is None) == (ratio == 1.0)
    return plan.points[0] if plan else ""


@pytest.mark.parametrize("seed", range(5))
def test_a_hopeless_choice_has_no_say(seed: int) -> None:
    """ResNet-18: TF32 of 1.54 lost to 1.35, as the noise of a choice that was no match for either made the two alike."""
    found = rows({"normal": (1.35, 0.01), "TF32": (1.54, 0.01), "hopeless": (0.15, 0.6)}, seed=seed)
    assert taken(found) == "TF32"


def test_what_holds_a_choice_back_is_its_own_noise_and_the_front_runners() -> None:
    errors = {"exact": 1e-7, "rough": 1e-3}
    quiet = rows({"exact": (1.35, 0.01), "rough": (1.54, 0.01)}, errors=errors)
    assert taken(quiet) == "rough"
    noisy = rows({"exact": (1.35, 0.2), "rough": (1.54, 0.2)}, errors=errors)
    assert taken(noisy) in ("exact", ""), "precision is not given away for what may be noise"


def test_rounds_are_held_against_each_other() -> None:
    """What the machine does meets all in a round alike: ratios to torch spread widely, those of two choices do not."""
    (one,) = rows({"one": (1.3, 0.0), "other": (1.4, 0.0)}, errors={"one": 1e-7, "other": 1e-3})
    moods = [1.0, 1.3, 0.8, 1.1, 0.9, 1.2, 1.0, 0.85, 1.15]
    for each in one.cells:
        each.times = [time * mood for time, mood in zip(each.times, moods, strict=True)]
        each.spread = 0.3
    front, beaten = (choose.Plan((name,)) for name in ("other", "one"))
    assert choose.estimate([one], front, beaten).ratio == pytest.approx(1.4 / 1.3)
    assert choose.estimate([one], front, beaten).is_gain
    assert not choose.is_gain(one, one.cells[0].model_copy(update={"ratio": 1.2})), "beside torch it may be noise"


def test_of_those_that_are_as_good_the_plainest() -> None:
    found = rows({"one": (1.5, 0.03), "same": (1.5, 0.03)})
    assert taken(found, one={"a": 1, "b": 2}, same={"a": 1}) == "same"
    assert taken(found, one={"a": 1}, same={"a": 1, "b": 2}) == "one"


def test_where_all_is_noise_nothing_is_taken() -> None:
    for noise, choices in ((0.3, 5), (0.05, 2)):
        figures = {f"choice{n}": (1.0, noise) for n in range(choices)}
        found = [taken(rows(figures, control=noise, seed=seed)) for seed in range(50)]
        assert found.count("") >= 48, "and these are to be confirmed once more"


def test_torchs_own_noise_counts_even_where_its_median_is_1() -> None:
    (one,) = rows({"one": (1.15, 0.0)}, control=0.0)
    assert taken([one]) == "one"
    one.control, one.control_spread = 1.0, 0.4
    assert taken([one]) == ""


def test_what_was_stopped_after_two_runs_is_no_gain() -> None:
    found = rows({"one": (3.0, 0.01)}, {"one": (0.8, 0.01)})
    assert taken(found) == "one"
    found[1].cells[0].spread, found[1].cells[0].times = None, []
    assert taken(found) == "", "how slow it is there is not known"


def test_a_gain_in_one_phase_may_cost_more_in_the_other() -> None:
    assert taken(rows({"one": (2.0, 0.01)}, {"one": (0.5, 0.01)})) == ""
    assert taken(rows({"one": (2.0, 0.01)}, {"one": (0.9, 0.01)})) == "one"
    assert taken(rows({"one": (2.0, 0.01)}, {"one": (0, 0)})) == "", "it has to be right everywhere"


def test_each_layer_has_its_own() -> None:
    found = rows({"gemm": (1.5, 0.01), "fft": (0.5, 0.01)}, {"gemm": (0.9, 0.01), "fft": (3.0, 0.01)}, {"gemm": (1.0, 0.01)})
    points = [PointOptions(name=name, options={"conv_fprop_algo": name}) for name in ("gemm", "fft")]
    plan, ratio = choose.best(found, choose.by_row(found, points))
    assert plan is not None
    assert plan.points == ("gemm", "fft", "")
    assert ratio == pytest.approx(3 / (1 / 1.5 + 1 / 3 + 1), rel=0.05)


@pytest.mark.parametrize("rest", [{}, {"conv_allow_tf32": True}])
def test_what_no_row_shows_alone_may_be_a_gain_on_the_whole(rest: dict[str, Any]) -> None:
    """The table of totals shows that gain, so it cannot stand beside the advice to leave all to torch."""
    found = rows(*[{"gemm": (1.06, 0.08), "fft": (0.5, 0.01)}] * 50, {"gemm": (0, 0), "fft": (0.9, 0.01)})
    points = [PointOptions(name=name, options={"conv_fprop_algo": name, **rest}) for name in ("gemm", "fft")]
    plan, ratio = choose.best(found, choose.by_row(found, points))
    assert plan is not None
    assert plan.points == ("gemm",) * 50 + ("fft" if rest else "",)
    assert ratio == pytest.approx(1.06, abs=0.02)


def test_whatever_is_taken_is_one_thing(tmp_path: Path) -> None:
    """What ``best`` says and what is recommended: the same choice, its speed and its options."""
    text = SMALL + "context: {seed: 3}\naxes: {way: {a: {deterministic: ON}, b: {conv_allow_tf32: true}}}"
    layers = made(tmp_path, text)
    for of in (layers, replace(layers, layers=None)):
        for first, second in ((1.5, 0.9), (0.9, 1.5), (1.6, 1.2), (0.9, 0.9)):
            found = result(of, *rows({"a": (first, 0.01), "b": (second, 0.01)}, {"a": (second, 0.01), "b": (first, 0.01)}))
            best = found.best
            assert yaml.safe_load(found.recommended or "context: {seed: 3}") == {"context": {"seed": 3, **best.options}}
            assert bool(best.options) == bool(found.recommended) == (best.ratio > 1) == any(best.points)

"""The rules recommended for the layers of a workload run what the comparison chose, and so bring about the ratio that it states."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from comparisons import asked_under, measured, needs_core, of_layers
from hypothesis import given, settings
from hypothesis import strategies as st

from msctx.compare.config import Comparison
from msctx.compare.result import Outcome, Result, Row
from msctx.compare.summary import result_of
from msctx.compare.workload import Product, output_of
from msctx.native.choices import ConvProblem

PLAIN = ConvProblem((1, 2, 6, 6), (2, 2, 3, 3), (1, 1), (0, 0), (1, 1), (0, 0), 1, False, "float32", "channels_first")


def comparison(folder: Path, problems: list[ConvProblem | Product], context: str = "{}", b: str = "") -> Comparison:
    ways = "{a: {conv_fprop_algo: gemm, conv_wgrad_algo: algo_1}, b: {conv_fprop_algo: fft, conv_wgrad_algo: fft" + b + "}}"
    return of_layers(folder, problems, ways, ", directions: [fprop, wgrad]", context)


def asked_by_plan(result: Result) -> list[str]:
    options: dict[str, Any] = {point.name: point.options for point in result.points} | {"": {}}
    chosen = zip(result.rows, result.best.points, strict=True)
    return [options[point].get(f"conv_{row.direction}_algo", "") for row, point in chosen]


def brought_about(result: Result, algorithms: list[str]) -> float:
    """The ratio of rows that get these algorithms."""
    own = 0.0
    for row, algorithm in zip(result.rows, algorithms, strict=True):
        cell = row.cell_of({"gemm": "a", "algo_1": "a", "fft": "b", "": ""}[algorithm])
        own += row.baseline.ms / (cell.ratio if cell else 1.0)
    return float(sum(row.baseline.ms for row in result.rows) / own)


def check(of: Comparison, rows: list[Row]) -> Result:
    found = result_of(of, Outcome(rows), {})
    options = yaml.safe_load(found.recommended or "context: {}")["context"]
    algorithms = asked_under(of, options)
    assert algorithms == asked_by_plan(found), options
    assert found.best.ratio == pytest.approx(brought_about(found, algorithms))
    return found


BATCHES = [PLAIN, replace(PLAIN, input=(4, 2, 6, 6))]
TRANSPOSED = replace(PLAIN, transposed=True, stride=(2, 2))
UNLIKE = {
    "batch": BATCHES,
    "output_padding": [TRANSPOSED, replace(TRANSPOSED, output_padding=(1, 1)), replace(TRANSPOSED, output_padding=(0, 1))],
    "transposed": [PLAIN, replace(PLAIN, transposed=True)],
    "stride": [PLAIN, replace(PLAIN, stride=(2, 2)), replace(PLAIN, stride=(1, 2))],
    "layout": [PLAIN, replace(PLAIN, layout="channels_last")],
    "dtype": [PLAIN, replace(PLAIN, dtype="float64")],
}
SAME = {
    "one problem twice": [PLAIN, PLAIN],
    "a layout that one channel does not show": [
        replace(PLAIN, input=(1, 1, 6, 6), weight=(2, 1, 3, 3), layout=layout) for layout in ("channels_first", "channels_last")
    ],
}


@pytest.mark.parametrize("field", UNLIKE)
def test_layers_that_differ_in_one_thing_each_get_their_own(field: str, tmp_path: Path) -> None:
    needs_core()
    layers = UNLIKE[field]
    of = comparison(tmp_path, [*layers])
    for speeds in ([(2.0, 0.5), (0.5, 2.0)], [(2.0, 0.5), (0.5, 0.5)], [(0.5, 0.5), (0.5, 2.0)]):
        by_layer = [speeds[n % 2] for n in range(len(layers)) for _ in of.keys.directions]
        points = check(of, measured(of, by_layer)).best.points
        assert points == ["" if max(pair) < 1 else "a" if pair[0] > 1 else "b" for pair in by_layer]


@pytest.mark.parametrize("why", SAME)
def test_layers_that_no_rule_separates_share_a_choice_and_its_ratio(why: str, tmp_path: Path) -> None:
    needs_core()
    of = comparison(tmp_path, [*SAME[why], replace(PLAIN, input=(1, 2, 7, 7))])
    found = check(of, measured(of, [(2.0, 0.5)] * 2 + [(0.9, 3.0)] * 2 + [(0.5, 0.5)] * 2))
    assert found.best.points == ["b"] * 4 + [""] * 2, "the faster one on both together"
    found = check(of, measured(of, [(2.0, 0.5)] * 2 + [(0.0, 0.5)] * 2 + [(2.0, 0.5)] * 2))
    assert found.best.points == [""] * 4 + ["a"] * 2, "it has to be right in both"


def test_the_batch_is_named_only_where_it_decides(tmp_path: Path) -> None:
    of = comparison(tmp_path, [*BATCHES])
    rules = result_of(of, Outcome(measured(of, [(2.0, 0.5)])), {}).best.options["conv_algo_rules"]
    assert rules == {"input=*x2x6x6 weight=2x2x3x3": {"fprop": "gemm", "wgrad": "algo_1"}}
    speeds = [(2.0, 0.5), (2.0, 0.5), (2.0, 0.5), (0.5, 2.0)]
    rules = result_of(of, Outcome(measured(of, speeds)), {}).best.options["conv_algo_rules"]
    assert [*rules] == ["input=1x2x6x6 weight=2x2x3x3", "input=4x2x6x6 weight=2x2x3x3"]
    rules = result_of(of, Outcome(measured(of, speeds)[:2]), {}).best.options["conv_algo_rules"]
    assert [*rules] == ["input=1x2x6x6 weight=2x2x3x3"], "what was not measured is left to torch"


@pytest.mark.parametrize(("context", "b"), [("{conv_algo_rules: 'groups=2: fprop=winograd'}", ""), ("{}", "rules")])
def test_rules_that_held_while_it_was_measured_stay_and_win(context: str, b: str, tmp_path: Path) -> None:
    needs_core()
    more = ", conv_algo_rules: {groups=2: {fprop: winograd}}" if b else ""
    grouped = replace(PLAIN, weight=(2, 1, 3, 3), groups=2)
    of = comparison(tmp_path, [PLAIN, grouped], context, more)
    found = result_of(of, Outcome(measured(of, [(0.5, 2.0)])), {})
    assert asked_under(of, yaml.safe_load(found.recommended)["context"]) == ["fft", "fft", "winograd", "fft"]


@st.composite
def layers(draw: st.DrawFn) -> ConvProblem:
    transposed = draw(st.booleans())
    stride = draw(st.sampled_from([(1, 1), (2, 2), (2, 1)]))
    return replace(
        PLAIN,
        input=(draw(st.sampled_from([1, 2, 12])), 2, *draw(st.sampled_from([(5, 5), (1, 1)]))),
        weight=(2, 2, *draw(st.sampled_from([(3, 3), (1, 1)]))),
        stride=stride,
        padding=draw(st.sampled_from([(1, 1), (1, 2)])),
        output_padding=tuple(draw(st.integers(0, s - 1)) for s in stride) if transposed else (0, 0),
        transposed=transposed,
        dtype=draw(st.sampled_from(["float32", "float64"])),
        layout=draw(st.sampled_from(["channels_first", "channels_last"])),
    )


@settings(max_examples=15)
@given(
    st.lists(layers().filter(lambda layer: min(output_of(layer)) > 0) | st.just(PLAIN), min_size=1, max_size=5),
    st.lists(st.tuples(*[st.sampled_from([0.0, 0.5, 1.01, 2.0])] * 2), min_size=1, max_size=10),
)
def test_rules_run_what_the_plan_chose(
    tmp_path_factory: Any, made: list[ConvProblem], speeds: list[tuple[float, float]]
) -> None:
    needs_core()
    folder = tmp_path_factory.mktemp("law")
    of = comparison(folder, [*made, Product((2, 3), (3, 2))])
    check(of, measured(of, speeds, unable="forward"))

"""The rules recommended for the layers of a workload run what the comparison chose, and so bring about the ratio that it states."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from comparisons import measured, needs_core, of_layers, requested_under
from hypothesis import given, settings
from hypothesis import strategies as st

from msctx.compare.config import Comparison
from msctx.compare.layer_workload_file import Product, output_of
from msctx.compare.result_and_recommendation import Result, result_of
from msctx.native.policy_and_choices import ConvProblem

PLAIN = ConvProblem((1, 2, 6, 6), (2, 2, 3, 3), (1, 1), (0, 0), (1, 1), (0, 0), 1, False, "float32", "channels_first")
WAYS = (
    "{a: {conv_fprop_algo: gemm, conv_wgrad_algo: algo_1, matmul_algo: strict}, "
    "b: {conv_fprop_algo: fft, conv_wgrad_algo: fft, matmul_algo: reference}}"
)
Speeds = list[tuple[float, float]]


def comparison(folder: Path, problems: list[Any], context: str = "{}") -> Comparison:
    return of_layers(folder, problems, WAYS, ", directions: [fprop, wgrad]", context)


def check(of: Comparison, speeds: Speeds) -> Result:
    found = result_of(of, measured(of, speeds), {})
    options: dict[str, Any] = {point.name: point.options for point in of.points} | {"": {}}
    chosen = []
    for row, point in zip(found.rows, found.best.points, strict=True):
        name = "matmul_algo" if row.direction == "forward" else f"conv_{row.direction}_algo"
        chosen.append(options[point].get(name, ""))
    assert requested_under(of, yaml.safe_load(found.recommended or "context: {}")["context"]) == chosen
    return found


def test_a_rule_is_for_any_batch(tmp_path):
    of = comparison(tmp_path, [PLAIN, replace(PLAIN, input=(4, 2, 6, 6))])
    where = "input=*x2x6x6 weight=2x2x3x3 stride=1 padding=0 dilation=1 output_padding=0 groups=1 transposed=false"
    where += " dtype=float32 layout=channels_first"
    found = result_of(of, measured(of, [(2.0, 0.5)]), {}).best.options["conv_algo_rules"]
    assert dict(found) == {where: {"fprop": "gemm", "wgrad": "algo_1"}}


def test_rules_that_held_while_it_was_measured_stay_and_win(tmp_path):
    needs_core()
    grouped = replace(PLAIN, weight=(2, 1, 3, 3), groups=2)
    of = comparison(tmp_path, [PLAIN, grouped], "{conv_algo_rules: 'groups=2: fprop=winograd'}")
    found = result_of(of, measured(of, [(0.5, 2.0)]), {})
    assert requested_under(of, yaml.safe_load(found.recommended)["context"]) == ["fft", "fft", "winograd", "fft"]


@st.composite
def convolutions(draw: st.DrawFn) -> ConvProblem:
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


def is_possible(problem: ConvProblem) -> bool:
    try:
        return min(output_of(problem)) > 0
    except RuntimeError:
        return False


@st.composite
def products(draw: st.DrawFn) -> Product:
    size = st.integers(1, 3)
    rows, depth, columns = draw(size), draw(size), draw(size)
    lead = tuple(draw(st.lists(size, max_size=2)))
    b = (*(lead if draw(st.booleans()) else ()), depth, columns)
    return Product((*lead, rows, depth), b, draw(st.booleans()), draw(st.sampled_from(["float32", "float64"])))


@settings(max_examples=25, deadline=None)
@given(
    st.lists(convolutions().filter(is_possible) | st.just(PLAIN) | products(), min_size=1, max_size=5),
    st.lists(st.tuples(*[st.sampled_from([0.0, 0.5, 1.01, 2.0])] * 2), min_size=1, max_size=10),
)
def test_rules_run_what_the_plan_chose(tmp_path_factory, made, speeds):
    needs_core()
    check(comparison(tmp_path_factory.mktemp("law"), made), speeds)

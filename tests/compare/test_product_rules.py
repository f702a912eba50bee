"""The rules recommended for the products of a workload run what the comparison chose."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from comparisons import asked_under, measured, needs_core, of_layers
from hypothesis import given, settings
from hypothesis import strategies as st

from msctx.compare.config import Comparison
from msctx.compare.result import Outcome, Result
from msctx.compare.summary import result_of
from msctx.compare.workload import Product

LINEAR = Product((5, 4), (4, 3), b_transposed=True)
ALGORITHMS = {"a": "strict", "b": "reference", "": ""}


WAYS = "{a: {matmul_algo: strict}, b: {matmul_algo: reference}}"


def result(of: Comparison, speeds: list[tuple[float, float]]) -> Result:
    """Of a comparison that found these speeds of both ways, row by row."""
    return result_of(of, Outcome(measured(of, speeds)), {})


def asked(of: Comparison, found: Result) -> list[str]:
    """The algorithm that each product gets under what is recommended, empty: none."""
    return asked_under(of, yaml.safe_load(found.recommended or "context: {}")["context"])


def check(of: Comparison, speeds: list[tuple[float, float]]) -> Result:
    found = result(of, speeds)
    assert asked(of, found) == [ALGORITHMS[point] for point in found.best.points]
    return found


UNLIKE = {
    "rows": [LINEAR, Product((6, 4), (4, 3), b_transposed=True)],
    "layout": [LINEAR, Product((5, 4), (4, 3))],
    "dtype": [LINEAR, Product((5, 4), (4, 3), b_transposed=True, dtype="float64")],
    "columns": [LINEAR, Product((5, 4), (4, 2), b_transposed=True)],
    "batch": [Product((2, 5, 4), (2, 4, 3)), Product((3, 5, 4), (3, 4, 3))],
    "axes": [Product((5, 4), (4, 3)), Product((2, 5, 4), (2, 4, 3))],
}


@pytest.mark.parametrize("field", UNLIKE)
def test_products_that_differ_in_one_thing_each_get_their_own(field: str, tmp_path: Path) -> None:
    needs_core()
    of = of_layers(tmp_path, UNLIKE[field], WAYS)
    assert check(of, [(2.0, 0.5), (0.5, 2.0)]).best.points == ["a", "b"]
    assert check(of, [(2.0, 0.5), (0.5, 0.5)]).best.points == ["a", ""]


def test_products_that_no_rule_separates_share_a_choice(tmp_path: Path) -> None:
    """Leading axes that share the right factor are rows to it."""
    needs_core()
    of = of_layers(tmp_path, [Product((6, 4), (4, 3)), Product((2, 3, 4), (4, 3))], WAYS)
    assert check(of, [(1.5, 0.9), (0.9, 3.0)]).best.points == ["b", "b"]


def test_rows_are_named_only_where_they_decide(tmp_path: Path) -> None:
    of = of_layers(tmp_path, UNLIKE["rows"], WAYS)
    rules = result(of, [(2.0, 0.5), (2.0, 0.5)]).best.options["matmul_algo_rules"]
    assert rules == {"input=*x4 weight=4x3 dtype=float32 layout=NT": "strict"}
    rules = result(of, [(2.0, 0.5), (0.5, 2.0)]).best.options["matmul_algo_rules"]
    assert [*rules] == [f"input={rows}x4 weight=4x3 dtype=float32 layout=NT" for rows in (5, 6)]


def test_rules_that_held_while_it_was_measured_stay_and_win(tmp_path: Path) -> None:
    needs_core()
    of = of_layers(tmp_path, UNLIKE["rows"], WAYS, context="{matmul_algo_rules: 'input=5x4: strict'}")
    found = result(of, [(0.5, 2.0), (0.5, 2.0)])
    assert asked(of, found) == ["strict", "reference"]


@st.composite
def products(draw: st.DrawFn) -> Product:
    size = st.integers(1, 3)
    rows, depth, columns = draw(size), draw(size), draw(size)
    lead = tuple(draw(st.lists(size, max_size=2)))
    b = (*(lead if draw(st.booleans()) else ()), depth, columns)
    return Product((*lead, rows, depth), b, draw(st.booleans()), draw(st.sampled_from(["float32", "float64"])))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(products(), st.sampled_from([0.5, 1.01, 2.0]), st.sampled_from([0.5, 2.0])), min_size=1, max_size=5))
def test_rules_run_what_the_plan_chose(
    tmp_path_factory: pytest.TempPathFactory, made: list[tuple[Product, float, float]]
) -> None:
    needs_core()
    of = of_layers(tmp_path_factory.mktemp("law"), [problem for problem, *_ in made], WAYS)
    check(of, [(a, b) for _, a, b in made])

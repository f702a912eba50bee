"""The rules recommended for the products of a workload run what the comparison chose."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
import yaml
from comparisons import needs_core
from hypothesis import given, settings
from hypothesis import strategies as st

import msctx
from msctx.compare import cases
from msctx.compare.config import Comparison, Given, read
from msctx.compare.result import Baseline, Cell, Outcome, Result, Row
from msctx.compare.summary import result_of
from msctx.compare.workload import NetworkLayer, Product, Workload, dump

LINEAR = Product((5, 4), (4, 3), b_transposed=True)
ALGORITHMS = {"a": "strict", "b": "reference", "": ""}


def comparison(folder: Path, problems: list[Product], context: str = "{}") -> Comparison:
    named = tuple(NetworkLayer(f"layer{n}", problem) for n, problem in enumerate(problems))
    (folder / "layers.yaml").write_text(dump(Workload("layers", named)))
    (folder / "mine.yaml").write_text(
        "compare: {workload: layers.yaml}\n"
        f"context: {context}\n"
        "axes: {way: {a: {matmul_algo: strict}, b: {matmul_algo: reference}}}\n"
    )
    return read(str(folder / "mine.yaml"), Given())


def result(of: Comparison, speeds: list[tuple[float, float]]) -> Result:
    """Of a comparison that found these speeds of both choices, row by row."""
    assert of.layers is not None
    rows = []
    for layer, pair in zip(of.layers.layers, speeds, strict=True):
        cells = [Cell(point=p, asked={}, error=1e-7, ratio=ratio, spread=0.01) for p, ratio in zip("ab", pair, strict=True)]
        head = {"name": layer.name, "direction": "forward", "problem": str(layer.problem), "count": 1, "operations": 1}
        rows.append(Row(**head, baseline=Baseline(ran="torch", ms=1.0, error=1e-7), rounds=9, cells=cells))
    return result_of(of, Outcome(rows), {})


def asked(of: Comparison, found: Result) -> list[str]:
    """The algorithm that each product gets under what is recommended, empty: none."""
    assert of.layers is not None
    options = yaml.safe_load(found.recommended or "context: {}")["context"]
    names = []
    for layer in of.layers.layers:
        (case,) = cases.of_layer(layer, [], torch.device("cpu"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", msctx.MsctxWarning)  # rules for the other products match nothing here
            with msctx.context(**options, fallback="silent") as ctx:
                case.run()
        names.append("".join(row.asked for row in ctx.choices()))
    return names


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
    of = comparison(tmp_path, UNLIKE[field])
    assert check(of, [(2.0, 0.5), (0.5, 2.0)]).best.points == ["a", "b"]
    assert check(of, [(2.0, 0.5), (0.5, 0.5)]).best.points == ["a", ""]


def test_products_that_no_rule_separates_share_a_choice(tmp_path: Path) -> None:
    """Leading axes that share the right factor are rows to it."""
    needs_core()
    of = comparison(tmp_path, [Product((6, 4), (4, 3)), Product((2, 3, 4), (4, 3))])
    assert check(of, [(1.5, 0.9), (0.9, 3.0)]).best.points == ["b", "b"]


def test_rows_are_named_only_where_they_decide(tmp_path: Path) -> None:
    of = comparison(tmp_path, UNLIKE["rows"])
    rules = result(of, [(2.0, 0.5), (2.0, 0.5)]).best.options["matmul_algo_rules"]
    assert rules == {"input=*x4 weight=4x3 dtype=float32 layout=NT": "strict"}
    rules = result(of, [(2.0, 0.5), (0.5, 2.0)]).best.options["matmul_algo_rules"]
    assert [*rules] == [f"input={rows}x4 weight=4x3 dtype=float32 layout=NT" for rows in (5, 6)]


def test_rules_that_held_while_it_was_measured_stay_and_win(tmp_path: Path) -> None:
    needs_core()
    of = comparison(tmp_path, UNLIKE["rows"], "{matmul_algo_rules: 'input=5x4: strict'}")
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
    of = comparison(tmp_path_factory.mktemp("law"), [problem for problem, *_ in made])
    check(of, [(a, b) for _, a, b in made])

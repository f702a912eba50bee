"""What a comparison comes to: totals, the best of each row, costs, settings to take, earlier results."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from comparisons import SMALL, cell, made, result, row
from jsonschema import Draft202012Validator

import msctx
from msctx.compare import result as results
from msctx.compare import summary
from msctx.compare.result import PointOptions, Result
from msctx.errors import FileError
from msctx.options.conv_rules import rules_of
from msctx.run.config import read as read_experiment

SCHEMA = results.schema()
A, B = "conv_fprop_algo=gemm", "conv_fprop_algo=winograd"
TWO = SMALL + "axes: {conv_fprop_algo: [gemm, winograd]}"
RESULTS = sorted((Path(__file__).parents[2] / "bench" / "results").glob("*-compare-*.json"))


@pytest.fixture
def found(tmp_path: Path) -> Result:
    return result(
        made(tmp_path, TWO),
        row("first", [cell(A, 0.5), cell(B, 2.0, 1e-5)], 3),
        row("<b>second</b>", [cell(A, 1.25), cell(B)], 1, 20.0),
        row("product", [cell(A), cell(B)], 1, 5.0, "forward"),
        environment={"cpu": "a CPU"},
    )


def test_totals_count_layers_as_often_as_they_occur(found: Result) -> None:
    totals = {total.point: total for total in found.totals}
    assert totals[A].ratio == pytest.approx(55 / (60 + 16 + 5))
    assert totals[B].ratio == pytest.approx(55 / (15 + 20 + 5))
    assert (totals[B].rows, totals[B].rows_of_torch, totals[B].error) == (1, 2, 1e-5)
    assert (found.best.ratio, found.best.points) == (pytest.approx(55 / (15 + 16 + 5)), [B, A, ""])


def test_the_recommended_rules_apply_whatever_the_batch(found: Result, tmp_path: Path) -> None:
    (tmp_path / "best.yaml").write_text(found.recommended)
    value = read_experiment(str(tmp_path / "best.yaml")).settings.get("conv_algo_rules").value  # type: ignore[union-attr]
    rules = {dict(rule.conditions)["weight"]: dict(rule.asked) for rule in rules_of(value)}
    assert rules == {"8x4x3x3": {"fprop": "winograd"}, "8x8x3x3": {"fprop": "gemm"}}
    assert dict(rules_of(value)[0].conditions)["input"] == "*x4x12x12"
    assert msctx.context(str(tmp_path / "best.yaml")).plan is not None


def test_neither_noise_nor_a_loss_is_recommended(tmp_path: Path) -> None:
    of = made(tmp_path, TWO)
    for cells in ([cell(A, 1.05, spread=0.2), cell(B, 0.9)], [cell(A, 0.9), cell(B)]):
        best = result(of, row("first", cells))
        assert (best.best.ratio, best.best.points, best.recommended) == (1.0, [""], "")


def test_where_most_of_the_time_is_noise_nothing_is_recommended(tmp_path: Path) -> None:
    of = made(tmp_path, TWO)
    cells = [cell(A, 1.4), cell(B, 0.9)]
    quiet, noisy = row("first", cells, 1), row("<b>second</b>", cells, 3, noisy=True)
    assert "gemm" in result(of, quiet, quiet, quiet, quiet, noisy).recommended
    found = result(of, quiet, quiet, noisy)
    assert (found.recommended, found.best.points, found.best.ratio) == ("", ["", "", ""], 1.0)
    assert found.model_copy(update={"load": 3.25}).noise == (
        "1 of 3 rows are noisy (load before: 3.2): repeat the comparison on an idle machine"
    )


def test_rows_in_which_a_choice_was_stopped_do_not_count_on_the_whole(tmp_path: Path) -> None:
    of = made(tmp_path, TWO)
    rows = [
        row("first", [cell(A, 2.0), cell(B, 0.05, spread=None)]),
        row("<b>second</b>", [cell(A, 0.05, spread=None), cell(B)]),
    ]
    found = result(of, *rows)
    first, second = found.totals
    assert (first.ratio, first.rows, first.rows_stopped) == (2.0, 2, 1)
    assert (second.ratio, second.rows, second.rows_stopped) == (pytest.approx(20 / 210), 1, 1), "there is nothing else"
    assert [line for line in summary.below(found, 0.9) if "stopped" in line] == [
        f"first fprop, {B}: stopped after its first runs, 0.05 of torch's speed",
        f"<b>second</b> fprop, {A}: stopped after its first runs, 0.05 of torch's speed",
    ]


def test_options_beside_algorithms_go_together_or_not_at_all(tmp_path: Path) -> None:
    of = made(tmp_path, SMALL + "axes: {way: {a: {conv_fprop_algo: fft, conv_allow_tf32: true}, b: {conv_allow_tf32: true}}}")
    rows = [row("first", [cell("a", 2.0), cell("b", 1.0)], 10), row("<b>second</b>", [cell("a", 0.1), cell("b", 0.99)])]
    found = result(of, *rows)
    assert found.best.points == ["a", "b"], "TF32 holds in both; where fft is slow it is left out"
    assert found.best.ratio == pytest.approx(110 / (50 + 10 / 0.99))
    assert "conv_allow_tf32: true" in found.recommended
    assert result(of, row("first", [cell("a", 0.5), cell("b", 0.9)])).best.points == [""], "torch itself is a choice, too"
    of = made(tmp_path, SMALL + "axes: {way: {a: {conv_fprop_algo: gemm, conv_allow_tf32: true}, b: {conv_fprop_algo: fft}}}")
    rows = [row("first", [cell("a", 2.0), cell("b", 1.5)]), row("<b>second</b>", [cell("a"), cell("b", 1.2)])]
    found = result(of, *rows)
    assert found.best.points == ["b", "b"], "TF32 is wrong in the second, where it would hold, too"
    assert "tf32" not in found.recommended


def test_a_model_gets_what_is_right_everywhere_and_more_than_noise(tmp_path: Path) -> None:
    of = replace(made(tmp_path, SMALL + "context: {seed: 1}\naxes: {deterministic: [ON, OFF]}"), layers=None)
    on, off = (point.name for point in of.points)

    def taken(*cells: list[Any]) -> str:
        return result(of, *(row("first", each) for each in cells)).recommended

    assert taken([cell(on, 3.0), cell(off, 1.005)], [cell(on), cell(off, 1.0)]) == ""
    assert taken([cell(on, 3.0), cell(off, 1.2)], [cell(on), cell(off, 1.0)]) == "context:\n  seed: 1\n  deterministic: 'OFF'\n"
    assert "'OFF'" in taken([cell(on, 1.21, 1e-3), cell(off, 1.2, 1e-6)]), "as fast within the noise, and more exact"
    assert "'ON'" in taken([cell(on, 1.41, 1e-3), cell(off, 1.2, 1e-6)])


def test_settings_are_written_by_one_name(tmp_path: Path) -> None:
    text = SMALL + "context: {deterministic: ON}\naxes: {session.deterministic: [0, 1]}"
    of = replace(made(tmp_path, text), layers=None)
    off, on = (point.name for point in of.points)
    found = result(of, row("first", [cell(off, 2.0), cell(on, 1.0)]))
    assert found.recommended == "context:\n  deterministic: 'OFF'\n"


def test_costs_of_determinism(tmp_path: Path) -> None:
    of = made(tmp_path, SMALL + "axes: {deterministic: [ON, OFF], conv_allow_tf32: [false, true]}")
    names = [point.name for point in of.points]
    cells = [cell(name, ratio) for name, ratio in zip(names, (1.0, 0.5, 2.0, None), strict=True)]
    (cost,) = result(of, row("first", cells)).costs
    assert (cost.with_, cost.without, cost.geometric_mean) == (names[0], names[2], pytest.approx(2.0))


def test_the_result_follows_its_schema_and_is_read_again(found: Result, tmp_path: Path) -> None:
    Draft202012Validator.check_schema(SCHEMA)
    written = json.dumps(found.as_json())
    Draft202012Validator(SCHEMA).validate(json.loads(written))
    broken = json.loads(written)
    broken["rows"][0]["cells"][0] = {"point": "a", "asked": {}, "status": "measured"}
    assert not Draft202012Validator(SCHEMA).is_valid(broken), "a cell has a figure or a reason"
    (tmp_path / "result.json").write_text(written)
    assert results.read(str(tmp_path / "result.json")) == found
    (without,) = (one for one in found.as_json()["rows"][1]["cells"] if "ratio" not in one)
    assert without.keys() == {"point", "asked", "ran", "error", "bound", "status", "reason"}


def renamed(data: dict[str, Any]) -> dict[str, Any]:
    return {"not_carried_out" if key == "told" else key: value for key, value in data.items()}


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_results_of_earlier_versions_are_read(path: Path) -> None:
    earlier, found = json.loads(path.read_text(), object_hook=renamed), results.read(str(path)).as_json()
    assert {key: found[key] for key in earlier if key != "best"} == {key: earlier[key] for key in earlier if key != "best"}


def test_csv_has_a_line_for_each_cell_and_no_formulas(found: Result) -> None:
    found.rows[0].name = "=1+1"
    lines = [*csv.DictReader(io.StringIO(results.as_csv(found)))]
    assert len(lines) == 6
    assert lines[0]["name"] == "'=1+1"
    assert (lines[1]["ratio"], lines[1]["baseline_ms"], lines[5]["reason"]) == ("2.0", "10.0", "it cannot")


def test_an_earlier_result_beside_it(found: Result) -> None:
    earlier = found.model_copy(deep=True)

    def against(one: Result) -> tuple[list[Any], list[str]]:
        one.against = summary.against(one, earlier)
        return one.against, summary.below(one, 0.9, beside_earlier=True)

    assert summary.below(found, 0.9) == [f"{A}: 0.68 of torch's speed"]
    found.rows[0].cells[1] = cell(B, 1.0)
    changes, slow = against(found)
    assert [(one.point, one.change) for one in changes if one.change != 1] == [(B, 0.5)]
    assert slow == [f"first fprop, {B}: 0.50 of the earlier ratio"]
    found.rows[0].cells[1] = cell(B)
    assert against(found)[1] == [f"first fprop, {B}: had a time, and now: it cannot"]
    found.rows[0].cells[1].status = "failed"
    assert summary.below(found, 0.01) == [f"first fprop, {B}: it cannot"]
    broken = found.model_copy(update={"rows": [row("first", [], reason="it cannot run: boom")]})
    changes, slow = against(broken)
    assert {one.name: one.reason for one in changes} == {
        "first": "it cannot run: boom",
        "<b>second</b>": "there is no such row today",
    }
    assert len(slow) == 3
    nothing = found.model_copy(update={"points": [PointOptions(name="another", options={})], "partial": "interrupted"})
    assert against(nothing)[1] == [
        "not everything was measured: interrupted",
        "the earlier result has no row and choice in common with this one",
    ]
    assert summary.below(found.model_copy(update={"totals": []}), 0.9)[0].endswith("has no time in any row")
    elsewhere = earlier.model_copy(update={"environment": {"cpu": "another"}, "context": {"seed": 1}})
    assert summary.elsewhere(found, elsewhere) == ["processor: another, now a CPU", "context: {'seed': 1}, now {}"]


def test_what_is_no_result_is_an_error(found: Result, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    good = found.as_json()

    def of(ratio: Any) -> str:
        bad = json.loads(json.dumps(good))
        bad["rows"][0]["cells"][0]["ratio"] = ratio
        return json.dumps(bad)

    texts = {
        "Invalid JSON": "",
        "of format 1: Input should be an object": "[1]",
        "of format 1: format": json.dumps(good | {"format": 0}),
        r"rows\.0": json.dumps(good | {"rows": [1]}),
        r"ratio: Input should be greater than 0": of(0),
        r"ratio: Input should be a finite number": of(float("nan")),
    }
    for told, text in texts.items():
        path.write_text(text)
        with pytest.raises(FileError, match=rf"r\.json.*{told}"):
            results.read(str(path))
    path.write_bytes(b"\xff")
    with pytest.raises(FileError, match="not UTF-8"):
        results.read(str(path))
    with pytest.raises(FileError, match="No such file"):
        results.read(str(tmp_path / "none.json"))

"""What a comparison comes to: totals, the best of each row, costs, settings to take, earlier results."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from comparisons import WORKLOAD
from jsonschema import Draft7Validator

import msctx
from msctx.compare import result as results
from msctx.compare.comparison import Outcome
from msctx.compare.config import Comparison, Given, read
from msctx.compare.schema import RESULT
from msctx.errors import FileError
from msctx.options.conv_rules import rules_of


def comparison(tmp_path: Path, axes: str) -> Comparison:
    (tmp_path / "small.yaml").write_text(WORKLOAD)
    (tmp_path / "mine.yaml").write_text(f"compare: {{workload: small.yaml, directions: [fprop]}}\n{axes}\n")
    return read(str(tmp_path / "mine.yaml"), Given(command="msctx compare mine.yaml"))


def row(name: str, count: int, ms: float, cells: list[dict[str, Any]], direction: str = "fprop") -> dict[str, Any]:
    shapes = {
        "first": "1x4x12x12 * 8x4x3x3, float32, padding 1, channels_first",
        "<b>second</b>": "1x8x12x12 * 8x8x3x3, float32, stride 2, channels_first",
        "product": "8x16 @ 16x4, float32",
    }
    head = {"name": name, "direction": direction, "problem": shapes[name], "count": count, "operations": 1}
    baseline = {"ran": "torch", "ms": ms, "error": 1e-7, "peak_bytes": None}
    return {**head, "baseline": baseline, "control": 1.0, "noisy": False, "rounds": 5, "cells": cells}


def cell(point: str, ratio: float | None = None, error: float = 1e-6, **more: Any) -> dict[str, Any]:
    head = {"point": point, "asked": {}, "ran": point.partition("=")[2], "error": error, "bound": 1e-4, "status": "measured"}
    if ratio is None:
        return {**head, "status": "unable", "reason": "it cannot", **more}
    figures = {"ratio": ratio, "spread": 0.02, "ms": 1.0, "noisy": False, "workspace": 0, "peak_bytes": None}
    return {**head, **figures, **more}


A, B = "conv_fprop_algo=gemm", "conv_fprop_algo=winograd"


@pytest.fixture
def found(tmp_path: Path) -> dict[str, Any]:
    of = comparison(tmp_path, "axes: {conv_fprop_algo: [gemm, winograd]}")
    rows = [
        row("first", 3, 10.0, [cell(A, 0.5), cell(B, 2.0, 1e-5)]),
        row("<b>second</b>", 1, 20.0, [cell(A, 1.25), cell(B)]),
        row("product", 1, 5.0, [cell(A), cell(B)], "forward"),
    ]
    return results.result_of(of, Outcome(rows), {"cpu": "a CPU"})


def test_totals_count_layers_as_often_as_they_occur(found: dict[str, Any]) -> None:
    totals = {total["point"]: total for total in found["totals"]}
    assert totals[A]["ratio"] == pytest.approx(55 / (60 + 16 + 5))
    assert totals[B]["ratio"] == pytest.approx(55 / (15 + 20 + 5))
    assert (totals[B]["rows"], totals[B]["rows_of_torch"], totals[B]["error"]) == (1, 2, 1e-5)
    assert (found["best"]["ratio"], found["best"]["points"]) == (pytest.approx(55 / (15 + 16 + 5)), [B, A, ""])


def test_a_gain_within_the_noise_is_none(tmp_path: Path) -> None:
    of = comparison(tmp_path, "axes: {conv_fprop_algo: [gemm, winograd]}")
    rows = [row("first", 1, 10.0, [cell(A, 1.05, spread=0.2), cell(B, 0.9)])]
    assert results.result_of(of, Outcome(rows), {})["best"]["points"] == [""]


def test_the_settings_can_be_run(found: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "best.yaml").write_text(found["recommended"])
    from msctx.run.config import read as read_experiment

    value = read_experiment(str(tmp_path / "best.yaml")).settings.get("conv_algo_rules").value  # type: ignore[union-attr]
    rules = {dict(rule.conditions)["weight"]: dict(rule.asked) for rule in rules_of(value)}
    assert rules == {"8x4x3x3": {"fprop": "winograd"}, "8x8x3x3": {"fprop": "gemm"}}
    assert dict(rules_of(value)[0].conditions)["input"] == "*x4x12x12", "whatever the batch"


def test_nothing_faster_recommends_nothing(tmp_path: Path) -> None:
    of = comparison(tmp_path, "axes: {conv_fprop_algo: [gemm, winograd]}")
    rows = [row("first", 1, 10.0, [cell(A, 0.9), cell(B)])]
    assert results.result_of(of, Outcome(rows), {})["recommended"] == ""


def test_options_beside_algorithms_go_together_or_not_at_all(tmp_path: Path) -> None:
    axes = "axes: {way: {a: {conv_fprop_algo: gemm, conv_allow_tf32: true}, b: {conv_fprop_algo: winograd}}}"
    of = comparison(tmp_path, axes)
    rows = [row("first", 1, 10.0, [cell("a", 2.0), cell("b", 1.5)]), row("<b>second</b>", 1, 10.0, [cell("a"), cell("b", 1.2)])]
    found = results.result_of(of, Outcome(rows), {})
    assert found["best"]["points"] == ["b", "b"], "TF32 is wrong in the second, where it would hold, too"
    assert "tf32" not in found["recommended"]
    rows[1]["cells"][0] = cell("a", 1.1)
    found = results.result_of(of, Outcome(rows), {})
    assert found["best"]["points"] == ["a", "a"]
    assert "conv_allow_tf32: true" in found["recommended"]


def test_options_that_hold_for_all_take_the_fastest_of_their_choices_everywhere(tmp_path: Path) -> None:
    of = comparison(tmp_path, "axes: {way: {a: {conv_fprop_algo: fft, conv_allow_tf32: true}, b: {conv_allow_tf32: true}}}")
    first, second = cell("a", 2.0), cell("b", 1.0)
    rows = [row("first", 10, 10.0, [first, second]), row("<b>second</b>", 1, 10.0, [cell("a", 0.1), cell("b", 0.99)])]
    found = results.result_of(of, Outcome(rows), {})
    assert found["best"]["points"] == ["a", "b"]
    assert found["best"]["ratio"] == pytest.approx(110 / (50 + 10 / 0.99))
    rows = [row("first", 1, 10.0, [cell("a", 0.5), cell("b", 0.9)])]
    found = results.result_of(of, Outcome(rows), {})
    assert (found["best"]["ratio"], found["best"]["points"]) == (1.0, [""]), "torch itself is a choice, too"


def test_settings_are_written_by_one_name(tmp_path: Path) -> None:
    of = comparison(tmp_path, "context: {deterministic: ON}\naxes: {session.deterministic: [0, 1]}")
    object.__setattr__(of, "layers", None)
    off, on = (point.name for point in of.points)
    told = results.result_of(of, Outcome([row("first", 1, 10.0, [cell(off, 2.0), cell(on, 1.0)])]), {})["recommended"]
    assert told == "context:\n  deterministic: 'OFF'\n"


def test_what_a_model_is_told_is_right_everywhere_and_more_than_noise(tmp_path: Path) -> None:
    of = comparison(tmp_path, "context: {runtime_num_threads: 1}\naxes: {deterministic: [ON, OFF]}")
    object.__setattr__(of, "layers", None)
    on, off = (point.name for point in of.points)
    rows = [row("first", 1, 10.0, [cell(on, 3.0), cell(off, 1.005)]), row("product", 1, 10.0, [cell(on), cell(off, 1.0)])]
    assert results.result_of(of, Outcome(rows), {})["recommended"] == ""
    rows[0]["cells"][1] = cell(off, 1.2)
    told = results.result_of(of, Outcome(rows), {})["recommended"]
    assert "deterministic: 'OFF'" in told
    rows = [row("first", 1, 10.0, [cell(on, 1.21, 1e-3), cell(off, 1.2, 1e-6)])]
    told = results.result_of(of, Outcome(rows), {})["recommended"]
    assert "deterministic: 'OFF'" in told, "as fast within the noise, and more exact"
    rows = [row("first", 1, 10.0, [cell(on, 1.41, 1e-3), cell(off, 1.2, 1e-6)])]
    assert "deterministic: 'ON'" in results.result_of(of, Outcome(rows), {})["recommended"]
    assert "runtime_num_threads: 1" in told, "what held for all is a part of it"


def test_costs_of_determinism(tmp_path: Path) -> None:
    of = comparison(tmp_path, "axes: {deterministic: [ON, OFF], conv_allow_tf32: [false, true]}")
    names = [point.name for point in of.points]
    rows = [row("first", 1, 10.0, [cell(names[0], 1.0), cell(names[1], 0.5), cell(names[2], 2.0), cell(names[3])])]
    (cost,) = results.result_of(of, Outcome(rows), {})["costs"]
    assert (cost["with"], cost["without"]) == (names[0], names[2])
    assert cost["geometric_mean"] == pytest.approx(2.0)


def test_the_result_follows_its_schema(found: dict[str, Any]) -> None:
    Draft7Validator.check_schema(RESULT)
    Draft7Validator(RESULT).validate(json.loads(json.dumps(found)))
    broken = {**found, "rows": [{**found["rows"][0], "cells": [{"point": "a", "asked": {}, "status": "measured"}]}]}
    assert list(Draft7Validator(RESULT).iter_errors(broken)), "a cell has a figure or a reason"


def test_csv_has_a_line_for_each_cell_and_no_formulas(found: dict[str, Any]) -> None:
    found["rows"][0]["name"] = "=1+1"
    lines = [*csv.DictReader(io.StringIO(results.as_csv(found)))]
    assert len(lines) == 6
    assert lines[0]["name"] == "'=1+1"
    assert (lines[1]["ratio"], lines[1]["baseline_ms"], lines[5]["reason"]) == ("2.0", "10.0", "it cannot")


def test_an_earlier_result_beside_it(found: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(found))
    earlier = results.read(str(path))
    found["rows"][0]["cells"][1] = cell(B, 1.0)
    changes = results.against(found, earlier)
    assert [(one["point"], one["change"]) for one in changes if one["change"] != 1] == [(B, 0.5)]
    assert results.below({**found, "against": changes}, 0.9) == [f"first fprop, {B}: 0.50 of the earlier ratio"]
    assert results.below(found, 0.9) == [f"{A}: 0.68 of torch's speed"]
    found["rows"][0]["cells"][1] = cell(B)
    (gone,) = (one for one in results.against(found, earlier) if one["change"] is None)
    assert "had a time, and now: it cannot" in results.below({**found, "against": [gone]}, 0.9)[0]
    nothing = {**found, "points": [{"name": "another", "options": {}}]}
    assert "no row and choice in common" in results.below({**nothing, "against": results.against(nothing, earlier)}, 0.9)[0]
    broken = {**found, "rows": [{**found["rows"][0], "baseline": {}, "cells": [], "reason": "it cannot run: boom"}]}
    lost = {one["name"]: one["reason"] for one in results.against(broken, earlier)}
    assert lost == {"first": "it cannot run: boom", "<b>second</b>": "there is no such row today"}
    assert len(results.below({**broken, "against": results.against(broken, earlier)}, 0.001)) == 3
    assert results.below({**found, "partial": "interrupted"}, 0.01)[0] == "not everything was measured: interrupted"
    found["rows"][0]["cells"][1]["status"] = "failed"
    assert results.below(found, 0.01) == [f"first fprop, {B}: it cannot"]
    elsewhere = {**earlier, "environment": {"cpu": "another"}, "context": {"seed": 1}}
    assert results.elsewhere(found, elsewhere) == ["processor: another, now a CPU", "context: {'seed': 1}, now {}"]
    assert results.below({**found, "totals": []}, 0.9)[0].endswith("has no time in any row")


@pytest.mark.parametrize(
    "text",
    [
        '{"format": 1, "rows": [{"name": "", "direction": "", "problem": "", "cells": [{"point": "", "ratio": 0}]}]}',
        '{"format": 1, "rows": [{"name": "", "direction": "", "problem": "", "cells": [{"point": "", "ratio": NaN}]}]}',
        "",
        "[1]",
        '{"format": 0, "rows": []}',
        '{"format": 1, "rows": [1]}',
        '{"format": 1, "rows": [{"name": ""}]}',
    ],
)
def test_what_is_no_result_is_told(text: str, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(FileError, match=r"r\.json"):
        results.read(str(tmp_path / "r.json"))
    with pytest.raises(FileError, match="No such file"):
        results.read(str(tmp_path / "none.json"))


def test_rules_recommended_are_taken_by_a_context(found: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "best.yaml").write_text(found["recommended"])
    assert msctx.context(str(tmp_path / "best.yaml")).plan is not None

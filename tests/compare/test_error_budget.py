"""The fastest layers within an error of the whole model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from comparisons import model_file, needs_core
from jsonschema import Draft202012Validator

import msctx
from msctx.compare import error_budget as budgets
from msctx.compare.cases import error_of, of_model
from msctx.compare.config import Comparison, Given, read
from msctx.compare.grid import Point
from msctx.compare.measure import Ratio
from msctx.compare.model import load
from msctx.compare.result import Budget, Result, schema
from msctx.compare.run import run

pytestmark = pytest.mark.usefixtures("one_thread")
AXES = """
axes:
  way:
    reference: {conv_fprop_algo: reference}
    winograd: {conv_fprop_algo: winograd}
"""


def comparison(tmp_path: Path, budget: float, phases: str = "inference") -> Comparison:
    text = f"compare: {{model: '{model_file(tmp_path)}:make', phases: {phases}, seconds: 0.001, budget: {budget}}}\n{AXES}"
    (tmp_path / "mine.yaml").write_text(text)
    return read(str(tmp_path / "mine.yaml"), Given())


def rigged(monkeypatch: pytest.MonkeyPatch) -> None:
    """winograd spares most everywhere, others a little: which of them is really faster is the machine's affair."""
    spared = {"winograd": 3.0}
    monkeypatch.setattr(budgets, "_spared", lambda row: {cell.point: spared.get(cell.point, 1.0) for cell in row.timed})
    monkeypatch.setattr(
        budgets._Search, "_ratios", lambda self, contexts: [2.0 - 0.1 * number for number in range(len(contexts))]
    )


def test_with_room_all_layers_are_the_fastest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_core()
    rigged(monkeypatch)
    found = run(comparison(tmp_path, 0.5))
    assert found.budget.per_layer.rules == {name: {"fprop": "winograd"} for name in ("0", "4", "6")}
    assert "conv_algo_rules" in found.recommended


def test_within_the_budget_as_many_as_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def error(_: Any, setting: budgets.Setting) -> float:
        each = setting.each.items()
        return 1e-7 + sum(harm[algorithm] * (3 if place == ("4", "fprop") else 1) for place, algorithm in each)

    needs_core()
    rigged(monkeypatch)
    harm = {"winograd": 1e-5, "reference": 1e-6}
    monkeypatch.setattr(budgets._Search, "_error", error)
    for budget, rules in (
        (3e-5, {"0": "winograd", "4": "reference", "6": "winograd"}),
        (1.5e-5, {"0": "reference", "4": "reference", "6": "winograd"}),
        (2.2e-6, {"0": "reference", "6": "reference"}),
        (5e-7, {}),
    ):
        found = run(comparison(tmp_path, budget)).budget.per_layer
        assert {path: rule["fprop"] for path, rule in found.rules.items()} == rules, budget
        assert found.error <= budget


def test_what_is_recommended_has_the_error_that_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_core()
    rigged(monkeypatch)
    found = run(comparison(tmp_path, 0.5))
    (tmp_path / "best.yaml").write_text(found.recommended)
    model = load(f"{model_file(tmp_path)}:make")
    (case,) = of_model(model, ["inference"])
    with case.scope(), msctx.context(str(tmp_path / "best.yaml")) as ctx:
        ctx.watch(model.module)
        error = error_of(case.results(), case.truth(), case.per_value)
        assert {row.ran for row in ctx.choices() if row.problem.dtype == "float32"} == {"winograd"}
    assert error == pytest.approx(found.budget.per_layer.error, rel=1e-6)


def test_a_budget_that_nothing_keeps_leaves_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_core()
    rigged(monkeypatch)
    found: Result = run(comparison(tmp_path, 1e-12))
    assert found.budget.reason.startswith("no setting meets the budget: the error of torch's own path is ")
    assert found.budget.reason.endswith("raise the budget above that")
    assert found.recommended == ""


def test_measured_for_real_with_a_hopeless_choice(tmp_path: Path) -> None:
    needs_core()
    text = f"compare: {{model: '{model_file(tmp_path)}:make', phases: inference, seconds: 0.01, budget: 0.01}}\n"
    (tmp_path / "mine.yaml").write_text(text + "axes: {conv_fprop_algo: [fft, reference, gemm]}\n")
    found = run(read(str(tmp_path / "mine.yaml"), Given()))
    assert found.budget.per_layer.ratio >= 1.0
    assert found.budget.per_layer.error <= 0.01
    assert not found.budget.reason


def test_options_beside_algorithms_are_of_the_recommendation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_core()
    rigged(monkeypatch)
    text = f"compare: {{model: '{model_file(tmp_path)}:make', phases: training, seconds: 0.001, budget: 0.5}}\n"
    text += "context: {runtime_num_threads: 1}\n"
    text += "axes: {way: {g: {conv_fprop_algo: gemm}}, precision_mode: [allow_mix_precision_bf16]}\n"
    (tmp_path / "mine.yaml").write_text(text)
    found = run(read(str(tmp_path / "mine.yaml"), Given()))
    assert "precision_mode: allow_mix_precision_bf16" in found.recommended
    assert "runtime_num_threads: 1" in found.recommended


def test_linear_layers_have_their_own_products(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_core()
    rigged(monkeypatch)
    text = f"compare: {{model: '{model_file(tmp_path)}:make', phases: inference, seconds: 0.001, budget: 0.5}}\n"
    text += "axes: {matmul_algo: [reference, strict]}\n"
    (tmp_path / "mine.yaml").write_text(text)
    found = run(read(str(tmp_path / "mine.yaml"), Given()))
    model = load(f"{model_file(tmp_path)}:make")
    linear = [name for name, module in model.module.named_modules() if isinstance(module, torch.nn.Linear)]
    assert linear
    assert sorted(found.budget.per_layer.products) == sorted(linear)
    assert not found.budget.per_layer.rules
    assert "matmul_algo_rules" in found.recommended


LOWER = "axes: {precision_mode: [allow_fp32_to_bf16]}\n"


def lower(tmp_path: Path, budget: float) -> Comparison:
    text = f"compare: {{model: '{model_file(tmp_path)}:make', phases: inference, seconds: 0.001, budget: {budget}}}\n{LOWER}"
    (tmp_path / "mine.yaml").write_text(text)
    return read(str(tmp_path / "mine.yaml"), Given())


def test_layers_are_lowered_as_far_as_the_error_stays_within(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_core()
    rigged(monkeypatch)
    found = run(lower(tmp_path, 0.1))
    assert found.budget.per_layer.float32 == [], "with room all of them"
    assert found.files == {}
    (whole,) = (cell.error for cell in found.rows[0].cells)
    part = run(lower(tmp_path, whole / 2))
    kept = part.budget.per_layer.float32
    assert 0 < len(kept) <= 4
    assert set(kept) <= {"0", "4", "6", "9"}
    assert part.budget.per_layer.error <= whole / 2 < whole
    assert part.budget.uniform.point == "", "lowered everywhere it would be too far off"
    Draft202012Validator(schema()).validate(part.as_json())
    (tmp_path / "best.yaml").write_text(part.recommended)
    (tmp_path / "best-dtypes.cfg").write_text(part.files["best-dtypes.cfg"])
    model = load(f"{model_file(tmp_path)}:make")
    (case,) = of_model(model, ["inference"])
    with case.scope(), msctx.context(str(tmp_path / "best.yaml")) as ctx:
        ctx.watch(model.module)
        assert error_of(case.results(), case.truth(), case.per_value) == pytest.approx(part.budget.per_layer.error, rel=1e-5)


def test_what_is_not_faster_beyond_noise_is_not_recommended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def turns(entrants: Any, *_: Any) -> dict[str, Ratio]:
        return {entrant.name: Ratio(1.0, 1.05, 0.2, 9) for entrant in entrants}

    needs_core()
    monkeypatch.setattr(budgets, "interleaved", turns)
    found = run(lower(tmp_path, 0.1))
    assert (found.recommended, found.budget.uniform.ratio) == ("", 1.0)


def test_what_is_not_finished_recommends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = lower(tmp_path, 1e-12)

    def stopped(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("msctx.compare.comparison.Runner.row", stopped)
    found = run(of)
    assert found.budget == Budget(budget=1e-12, reason="it was not looked for: interrupted")
    assert found.recommended == ""


def test_quick_ends_the_search_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_core()
    monkeypatch.setattr(budgets, "QUICK", -1.0)
    of = lower(tmp_path, 0.1)
    assert run(replace(of, total=1000.0)).budget.reason.endswith("of --quick; leave it out")
    assert run(replace(of, total=-1.0)).budget.reason.endswith("leave it out to measure the other rows, too")


def test_what_cannot_be_searched_keeps_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise KeyError("layers")

    monkeypatch.setattr(budgets.capture, "problems", broken)
    found = run(comparison(tmp_path, 0.5))
    assert found.budget.reason == "KeyError: 'layers'"
    assert found.rows[0].baseline.ms

    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(budgets.capture, "problems", stopped)
    found = run(comparison(tmp_path, 0.5))
    assert found.partial == "interrupted"
    assert found.rows[0].baseline.ms


def test_training_has_all_directions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_core()
    rigged(monkeypatch)
    of = comparison(tmp_path, 0.5, "training")
    points = (Point("winograd", {"conv_fprop_algo": "winograd", "conv_dgrad_algo": "winograd"}),)
    found = run(replace(of, points=points)).budget
    assert found.phase == "training"
    assert found.per_layer.rules["4"] == {"fprop": "winograd", "dgrad": "winograd"}
    assert found.per_layer.error < 0.5

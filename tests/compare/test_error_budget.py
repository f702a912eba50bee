"""The fastest layers within an error of the whole model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from comparisons import model_file, needs_core

import msctx
from msctx.compare import error_budget as budgets
from msctx.compare.cases import error_of, of_model
from msctx.compare.config import Comparison, Given, read
from msctx.compare.model import load
from msctx.compare.run import run

pytestmark = pytest.mark.usefixtures("one_thread")
AXES = """
axes:
  way:
    gemm: {conv_fprop_algo: gemm}
    winograd: {conv_fprop_algo: winograd}
"""


def comparison(tmp_path: Path, budget: float, phases: str = "inference") -> Comparison:
    text = f"compare: {{model: '{model_file(tmp_path)}:make', phases: {phases}, seconds: 0.001, budget: {budget}}}\n{AXES}"
    (tmp_path / "mine.yaml").write_text(text)
    return read(str(tmp_path / "mine.yaml"), Given())


def rigged(monkeypatch: pytest.MonkeyPatch) -> None:
    """winograd spares most everywhere, gemm a little: which of them is really faster is the machine's affair."""
    spared = {"winograd": 3.0, "gemm": 1.0}
    monkeypatch.setattr(budgets, "_spared", lambda row: {c["point"]: spared[c["point"]] for c in row["cells"] if "ratio" in c})
    monkeypatch.setattr(
        budgets._Search, "_ratios", lambda self, contexts: [2.0 - 0.1 * number for number in range(len(contexts))]
    )


def errors(tmp_path: Path) -> dict[str, float]:
    """Setting → error of the model, computed here anew."""
    model = load(f"{model_file(tmp_path)}:make")
    (case,) = of_model(model, ["inference"])
    with case.scope():
        truth = case.truth()
    found = {}
    for name, options in {"torch": {}, "winograd": {"conv_fprop_algo": "winograd"}}.items():
        with case.scope(), msctx.context(**options):  # type: ignore[arg-type]
            found[name] = error_of(case.results(), truth, case.per_value)
    return found


def test_with_room_all_layers_are_the_fastest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_core()
    rigged(monkeypatch)
    found = run(comparison(tmp_path, 0.5))
    assert found["budget"]["per_layer"]["rules"] == {name: {"fprop": "winograd"} for name in ("0", "4", "6")}
    assert "conv_algo_rules" in found["recommended"]


def test_within_the_budget_as_many_as_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_core()
    rigged(monkeypatch)
    known = errors(tmp_path)
    assert known["torch"] < known["winograd"]
    limit = (known["torch"] + known["winograd"]) / 2
    found = run(comparison(tmp_path, limit))["budget"]
    assert found["per_layer"]["error"] <= limit
    algorithms = [rule["fprop"] for rule in found["per_layer"]["rules"].values()]
    assert algorithms.count("winograd") < 3, "where it does too much harm the next fastest is taken"
    assert set(algorithms) <= {"winograd", "gemm"}
    assert found["uniform"]["point"] == "gemm"
    assert found["uniform"]["error"] <= limit


def test_what_is_recommended_has_the_error_that_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_core()
    rigged(monkeypatch)
    found = run(comparison(tmp_path, 0.5))
    (tmp_path / "best.yaml").write_text(found["recommended"])
    model = load(f"{model_file(tmp_path)}:make")
    (case,) = of_model(model, ["inference"])
    with case.scope(), msctx.context(str(tmp_path / "best.yaml")) as ctx:
        ctx.watch(model.module)
        error = error_of(case.results(), case.truth(), case.per_value)
        assert {row.ran for row in ctx.choices() if row.problem.dtype == "float32"} == {"winograd"}
    assert error == pytest.approx(found["budget"]["per_layer"]["error"], rel=1e-6)


def test_a_budget_that_nothing_keeps_leaves_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_core()
    rigged(monkeypatch)
    found: dict[str, Any] = run(comparison(tmp_path, 1e-12))
    assert found["budget"]["reason"].startswith("nothing keeps it: the error of torch's own path is ")
    assert found["recommended"] == ""


def test_measured_for_real_with_a_hopeless_choice(tmp_path: Path) -> None:
    needs_core()
    text = f"compare: {{model: '{model_file(tmp_path)}:make', phases: inference, seconds: 0.01, budget: 0.01}}\n"
    (tmp_path / "mine.yaml").write_text(text + "axes: {conv_fprop_algo: [fft, reference, gemm]}\n")
    found = run(read(str(tmp_path / "mine.yaml"), Given()))
    assert found["budget"]["per_layer"]["ratio"] >= 1.0
    assert found["budget"]["per_layer"]["error"] <= 0.01
    assert "reason" not in found["budget"]


def test_options_beside_algorithms_are_of_the_recommendation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_core()
    rigged(monkeypatch)
    text = f"compare: {{model: '{model_file(tmp_path)}:make', phases: training, seconds: 0.001, budget: 0.5}}\n"
    text += "context: {runtime_num_threads: 1}\n"
    text += "axes: {way: {g: {conv_fprop_algo: gemm}}, precision_mode: [allow_mix_precision_bf16]}\n"
    (tmp_path / "mine.yaml").write_text(text)
    found = run(read(str(tmp_path / "mine.yaml"), Given()))
    assert "precision_mode: allow_mix_precision_bf16" in found["recommended"]
    assert "runtime_num_threads: 1" in found["recommended"]


def test_what_cannot_be_searched_keeps_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise KeyError("layers")

    monkeypatch.setattr(budgets.capture, "problems", broken)
    found = run(comparison(tmp_path, 0.5))
    assert found["budget"]["reason"] == "KeyError: 'layers'"
    assert found["rows"][0]["baseline"]

    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(budgets.capture, "problems", stopped)
    found = run(comparison(tmp_path, 0.5))
    assert found["partial"] == "interrupted"
    assert found["rows"][0]["baseline"]


def test_training_has_all_directions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_core()
    rigged(monkeypatch)
    of = comparison(tmp_path, 0.5, "training")
    object.__setattr__(of, "points", tuple(p for p in of.points if p.name == "winograd"))
    object.__setattr__(of.points[0], "options", {"conv_fprop_algo": "winograd", "conv_dgrad_algo": "winograd"})
    found = run(of)["budget"]
    assert found["phase"] == "training"
    assert found["per_layer"]["rules"]["4"] == {"fprop": "winograd", "dgrad": "winograd"}
    assert found["per_layer"]["error"] < 0.5

"""The digits network learns the same under each algorithm of convolution, and the record says which ones ran."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from msctx.run.config import read
from msctx.run.runner import run_experiment

ROOT = Path(__file__).parents[2]
EXPERIMENTS = ROOT / "configs" / "experiments"
FILE = str(EXPERIMENTS / "digits_algorithms.yaml")


def run(folder: Path, *overrides: str) -> dict[str, Any]:
    return run_experiment(read(FILE, list(overrides), need_entry=True), str(folder))


@pytest.mark.full
def test_every_algorithm_reaches_the_same_accuracy(tmp_path: Path) -> None:
    result = run(tmp_path / "run", "args.epochs=2", "runtime_num_threads=1")
    accuracy = result["test_accuracy"]
    assert isinstance(accuracy, dict)
    assert min(accuracy.values()) >= 0.95
    assert result["difference"] <= 0.015  # five of 359 images: other last bits, another path
    ran = {
        row["algorithm"]: row["ran"] for row in map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    }
    assert ran["torch"] == ""
    assert ran["winograd"] == "dgrad=winograd, fprop=winograd, wgrad=winograd_nonfused"
    assert ran["implicit_gemm"] == "dgrad=algo_0, fprop=implicit_gemm, wgrad=algo_0"
    for name in ("fft", "fft_tiling", "winograd_nonfused"):
        assert ran[name] == f"dgrad={name}, fprop={name}, wgrad={name}"


@pytest.mark.full
def test_the_reference_learns_too(tmp_path: Path) -> None:
    result = run(tmp_path / "run", "args.epochs=1", "args.algorithms=[torch,reference]", "runtime_num_threads=1")
    assert abs(result["test_accuracy"]["torch"] - result["test_accuracy"]["reference"]) <= 0.02


def test_the_names_are_those_of_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each value of each direction is trained with, or replaced by its nearest where the direction does not have it."""
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    for name in ("digits_algorithms", "digits"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import digits_algorithms

    from msctx.options.gpu import OPTIONS

    for direction in ("fprop", "dgrad", "wgrad"):
        choices = next(o for o in OPTIONS if o.name == f"conv_{direction}_algo").choices
        trained = {values[direction] for values in digits_algorithms.ALGORITHMS.values() if values}
        assert trained == set(choices)


def test_a_run_records_what_ran(tmp_path: Path) -> None:
    digits = read(str(EXPERIMENTS / "digits.yaml"), ["conv_fprop_algo=winograd", "args.epochs=1"], need_entry=True)
    run_experiment(digits, str(tmp_path / "run"))
    rows = json.loads((tmp_path / "run" / "choices.json").read_text())
    assert {row["ran"] for row in rows} == {"winograd"}
    assert {row["direction"] for row in rows} == {"fprop"}
    assert sum(row["calls"] for row in rows) > 100

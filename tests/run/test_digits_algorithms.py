"""The digits network learns the same under each algorithm of convolution, and the record says which ones ran."""

import json
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
def test_every_algorithm_reaches_the_same_accuracy(tmp_path):
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

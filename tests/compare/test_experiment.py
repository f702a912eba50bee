"""Whole experiments compared: a process for each choice."""

from __future__ import annotations

from pathlib import Path

from msctx.compare.config import Given, read
from msctx.compare.experiment import compare
from msctx.compare.run import run

ENTRY = """
import time, torch
def train(scale: float = 1.0):
    assert not (torch.are_deterministic_algorithms_enabled() and scale == 3), "never so"
    return {"deterministic": torch.are_deterministic_algorithms_enabled(), "loss": scale * 2}
"""


def experiment(tmp_path: Path, scale: float = 1.0) -> str:
    (tmp_path / "entry.py").write_text(ENTRY)
    text = f"context: {{seed: 1}}\nexperiment: {{entry: entry.py:train, args: {{scale: {scale}}}}}\n"
    (tmp_path / "train.yaml").write_text(text)
    return str(tmp_path / "train.yaml")


def test_each_choice_is_a_run(tmp_path: Path) -> None:
    found = run(read(experiment(tmp_path), Given(axes=["deterministic=ON,OFF"])))
    (row,) = found["rows"]
    on, off = row["cells"]
    assert (row["direction"], row["baseline"]["metrics"]["loss"]) == ("run", 2.0)
    assert (on["metrics"]["deterministic"], off["metrics"]["deterministic"]) == (True, False)
    assert on["ratio"] > 0
    assert (on["error"], on["spread"]) == (None, None)
    assert found["costs"][0]["with"] == "deterministic=ON"


def test_a_run_that_fails_is_a_reason(tmp_path: Path) -> None:
    (row,) = compare(read(experiment(tmp_path, 3.0), Given(axes=["deterministic=ON,OFF"]))).rows
    on, off = row["cells"]
    assert on["reason"].endswith("AssertionError: never so")
    assert "ratio" in off

"""Whole experiments compared: a process for each choice."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from msctx.compare import comparison
from msctx.compare.comparison import run
from msctx.compare.config import Comparison, Given, read

ENTRY = """
import torch
def train(scale: float = 1.0):
    assert not (torch.are_deterministic_algorithms_enabled() and scale == 3), "never so"
    return {"deterministic": torch.are_deterministic_algorithms_enabled(), "loss": scale * 2, "seed": torch.initial_seed()}
"""


def made(tmp_path: Path, scale: float, text: str = "", **given: Any) -> Comparison:
    (tmp_path / "entry.py").write_text(ENTRY)
    text = f"context: {{seed: 1}}\nexperiment: {{entry: entry.py:train, args: {{scale: {scale}}}}}\n{text}"
    (tmp_path / "train.yaml").write_text(text)
    return read(str(tmp_path / "train.yaml"), Given(**given))


@pytest.mark.full
def test_each_choice_is_a_run_and_words_apply_to_every_one(tmp_path: Path) -> None:
    of = made(tmp_path, 1.0, "axes: {deterministic: [ON, OFF]}\n", overrides=["args.scale=2.5"], quick=True)
    (row,) = run(replace(of, total=math.inf)).rows
    assert (row.direction, row.rounds) == ("run", 1)
    assert [one.metrics["deterministic"] for one in (row.baseline, *row.cells)] == [False, True, False]
    assert [one.metrics["loss"] for one in (row.baseline, *row.cells)] == [5.0] * 3
    assert [one.metrics["seed"] for one in (row.baseline, *row.cells)] == [1] * 3
    assert all(one.ratio > 0 and one.error is None for one in row.cells)


def test_runs_take_turns_beside_a_control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []

    def run_point(children: Any, file: str, words: list[str], folder: Path) -> dict[str, Any]:
        ran.append(words)
        return {"status": "completed", "seconds": 1.0 if words else 2.0, "loss": 0.5}

    monkeypatch.setattr(comparison, "run_point", run_point)
    of = made(tmp_path, 1.0, "compare: {repetitions: 2}\naxes: {deterministic: [ON]}\n")
    seen: list[tuple[int, int]] = []
    found = run(of, lambda done, of, name: seen.append((done, of)))
    on = ["deterministic=ON"]
    assert ran == [on, [], [], [], [], on, on, [], []], "each once before, which is not counted, and twice"
    assert seen[-1] == (8, 9)
    (row,) = found.rows
    assert (row.rounds, row.control, row.cells[0].ratio) == (2, 1.0, 2.0)
    assert found.best.options == {"deterministic": "ON"}

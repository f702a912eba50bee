"""Whole experiments compared: a process for each choice."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from msctx.compare.comparison import Watch
from msctx.compare.config import Comparison, Given, read
from msctx.compare.experiment import compare
from msctx.compare.run import run

ENTRY = """
import time, torch
def train(scale: float = 1.0):
    if scale == 7:
        with open("runs", "a") as file:
            file.write("x")
    assert not (torch.are_deterministic_algorithms_enabled() and scale == 3), "never so"
    return {"deterministic": torch.are_deterministic_algorithms_enabled(), "loss": scale * 2, "seed": torch.initial_seed()}
"""


def experiment(tmp_path: Path, scale: float = 1.0) -> str:
    (tmp_path / "entry.py").write_text(ENTRY)
    text = f"context: {{seed: 1}}\nexperiment: {{entry: entry.py:train, args: {{scale: {scale}}}}}\n"
    (tmp_path / "train.yaml").write_text(text)
    return str(tmp_path / "train.yaml")


def once(name: str, **given: object) -> Comparison:
    """One run of each choice, as ``--quick`` has it, with all the time that a busy machine takes for them."""
    return replace(read(name, Given(**given, quick=True)), total=math.inf)  # type: ignore[arg-type]


@pytest.mark.full
def test_each_choice_is_a_run_under_the_files_own_options(tmp_path: Path) -> None:
    experiment(tmp_path)
    text = "compare: {experiment: train.yaml}\ncontext: {seed: 3}\naxes: {deterministic: [ON]}\n"
    (tmp_path / "mine.yaml").write_text(text)
    found = run(once(str(tmp_path / "mine.yaml"), overrides=["args.scale=2.5"]))
    (row,) = found.rows
    (on,) = row.cells
    assert (row.direction, row.baseline.metrics["loss"], on.metrics["loss"]) == ("run", 5.0, 5.0)
    assert (row.baseline.metrics["deterministic"], on.metrics["deterministic"]) == (False, True)
    assert (row.baseline.metrics["seed"], on.metrics["seed"]) == (3, 3), "the experiment's own is 1"
    assert on.ratio > 0
    assert (on.error, on.spread) == (None, None)


@pytest.mark.full
def test_an_experiments_own_file_may_have_axes_and_words_apply_to_every_run(tmp_path: Path) -> None:
    name = experiment(tmp_path)
    with open(name, "a") as file:
        file.write("axes: {deterministic: [ON, OFF]}\n")
    (row,) = run(once(name, overrides=["args.scale=2.5"])).rows
    assert [cell.metrics["deterministic"] for cell in row.cells] == [True, False]
    assert [one.metrics["loss"] for one in (row.baseline, *row.cells)] == [5.0] * 3


@pytest.mark.full
def test_a_run_that_fails_is_a_reason(tmp_path: Path) -> None:
    (row,) = compare(once(experiment(tmp_path, 3.0), axes=["deterministic=ON,OFF"])).rows
    on, off = row.cells
    assert on.reason.endswith("AssertionError: never so")
    assert off.ratio


def test_where_time_is_short_the_others_do_not_run(tmp_path: Path) -> None:
    outcome = compare(replace(once(experiment(tmp_path), axes=["deterministic=ON"]), total=1e-9))
    assert "--quick ends after" in outcome.partial
    assert outcome.rows[0].reason == outcome.partial


@pytest.mark.full
def test_a_run_before_the_others_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    experiment(tmp_path, 7)
    text = "compare: {experiment: train.yaml, repetitions: 2}\naxes: {deterministic: [ON]}\n"
    (tmp_path / "mine.yaml").write_text(text)
    begun: list[int] = []
    (row,) = compare(read(str(tmp_path / "mine.yaml"), Given()), Watch(begin=begun.append)).rows
    assert (tmp_path / "runs").read_text() == "x" * 6
    assert begun == [6]
    assert row.rounds == 2
    assert row.cells[0].spread >= 0

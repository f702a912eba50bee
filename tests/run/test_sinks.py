"""What a run logs goes to TensorBoard, MLflow and W&B as well, and none of them can end a run."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import msctx
from msctx.cli import main
from msctx.errors import OptionError
from msctx.run import sinks
from msctx.run.config import read
from msctx.run.runner import run_experiment

SOURCE = """
import random
import torch

def main(run, lr):
    for epoch in range(3):
        run.log(epoch=epoch, loss=torch.tensor(1.0 / (epoch + 1)), note="text")
    run.log(accuracy=0.5)
    return {"final": 0.25, "drawn": random.random()}
"""
Experiment = Callable[..., str]


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    def write(names: str, source: str = SOURCE) -> str:
        (tmp_path / "job.py").write_text(source)
        file = tmp_path / "job.yaml"
        options = "context: {cpu_config: {conv_fprop_algo: gemm}}"
        experiment = "experiment: {entry: job.py:main, args: {lr: 0.5}, seed: 0}"
        file.write_text(f"{experiment}\nrecord:\n  sinks: {names}\n{options}\n")
        return str(file)

    return write


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a sink gets that stands in for TensorBoard's."""
    rows: list[Any] = []

    class Fake:
        def __init__(self, folder: Path, name: str, parameters: sinks.Parameters) -> None:
            rows.append((name, parameters))

        def send(self, numbers: dict[str, float], step: int) -> None:
            rows.append((step, numbers))
            if numbers.get("epoch") == 1 and "fails" in rows:
                raise OSError("the disk is full")

        def close(self, status: str) -> None:
            rows.append(status)

    monkeypatch.setitem(sinks.SINKS, "tensorboard", Fake)
    monkeypatch.setattr(sinks, "find_spec", lambda name: name == "tensorboard" or None)
    return rows


def test_rows_are_numbers_with_a_step(experiment: Experiment, sent: list[Any], tmp_path: Path) -> None:
    result = run_experiment(read(experiment("[tensorboard]")), str(tmp_path / "run"))
    (name, parameters), *rows, last, status = sent
    assert (name, status) == ("job", "completed")
    assert parameters == {"seed": 0, "cpu_config.conv_fprop_algo": "gemm", "args.lr": 0.5}
    losses = [(epoch + 1, {"epoch": epoch, "loss": pytest.approx(1 / (epoch + 1))}) for epoch in range(3)]
    assert rows == [*losses, (4, {"accuracy": 0.5})]
    assert last[0] == 5
    assert last[1]["result/final"] == 0.25
    assert "result/status" not in last[1]
    again = run_experiment(read(str(tmp_path / "run" / "config.yaml")), str(tmp_path / "again"))
    assert again["drawn"] == result["drawn"]
    assert sent[-1] == "completed"
    assert len(sent) == 14, "config.yaml names the sinks, too"


def test_steps_never_go_back_by_themselves(sent: list[Any], tmp_path: Path) -> None:
    """W&B ignores what comes for a step that is over."""
    found = sinks.Sinks(["tensorboard"], tmp_path, "x", {})
    for row in (
        {"step": 10},
        {"step": 20.0},
        {"loss": 1.0},
        {"step": math.nan},
        {"step": math.inf},
        {"step": 2.5},
        {"epoch": 1},
    ):
        found.send(row)
    found.close({"status": "completed", "final": 1.0})
    assert [row[0] for row in sent[1:-1]] == [10, 20, 21, 22, 23, 24, 25, 26]


def test_without_sinks_nothing_is_looked_at() -> None:
    sinks.Sinks([], Path(), "x", {}).send({"step": math.nan, "odd": object()})


def test_a_sink_that_fails_is_reported_once_and_the_run_goes_on(
    experiment: Experiment, sent: list[Any], tmp_path: Path
) -> None:
    sent.append("fails")
    with pytest.warns(msctx.MsctxWarning, match="tensorboard failed and is left out.*OSError: the disk is full") as found:
        result = run_experiment(read(experiment("tensorboard")), str(tmp_path / "run"))
    assert len(found) == 1
    assert result["status"] == "completed"
    assert [row[0] for row in sent[2:-1]] == [1, 2]
    assert sent[-1] == "completed", "it is closed all the same"
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 4


def test_other_ranks_send_nothing(
    experiment: Experiment, sent: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    run_experiment(read(experiment("[tensorboard]")), str(tmp_path / "run"))
    assert sent == []


def test_a_missing_package_is_an_error_before_the_run(
    experiment: Experiment, sent: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = r'job.yaml:3:10  record.sinks: mlflow, wandb: not installed; install with pip install "msctx\[mlflow,wandb\]"'
    with pytest.raises(OptionError, match=command):
        run_experiment(read(experiment("[mlflow, wandb, tensorboard]")), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    with pytest.raises(SystemExit) as end:
        main(["run", experiment("[mlflow]"), "--dry-run"])
    assert end.value.code == 2
    assert "pip install" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("[tensorbord]", "job.yaml:3:10  record.sinks: 'tensorbord' is not a sink"),
        ("{a: 1}", "record.sinks: is not a list"),
        ("[1]", "record.sinks: 1 is not a sink"),
    ],
)
def test_unknown_sinks_are_errors_with_their_place(experiment: Experiment, names: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        read(experiment(names))
    assert message in str(caught.value)
    assert "allowed: a list of tensorboard, wandb, mlflow" in str(caught.value)


def drawn_without_sinks(experiment: Experiment, tmp_path: Path) -> float:
    return run_experiment(read(experiment("[]")), str(tmp_path / "plain"))["drawn"]


def test_tensorboard(experiment: Experiment, tmp_path: Path) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    result = run_experiment(read(experiment("[tensorboard]")), str(tmp_path / "run"))
    found = reading.EventAccumulator(str(tmp_path / "run"))
    found.Reload()
    assert [(event.step, event.value) for event in found.Scalars("loss")] == [(1, 1.0), (2, 0.5), (3, pytest.approx(1 / 3))]
    assert [event.value for event in found.Scalars("result/final")] == [0.25]
    assert b"| args.lr | 0.5 |" in found.Tensors("parameters/text_summary")[0].tensor_proto.string_val[0]
    assert result["drawn"] == drawn_without_sinks(experiment, tmp_path)


@pytest.mark.full
def test_mlflow(experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    result = run_experiment(read(experiment("[mlflow]")), str(tmp_path / "run"))
    assert "MLFLOW_ALLOW_FILE_STORE" not in os.environ
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = mlflow.MlflowClient((tmp_path / "run" / "mlruns").as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("job").experiment_id])
    assert [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "loss")][1] == (2, 0.5)
    assert (run.data.metrics["result/final"], run.info.status, run.info.run_name) == (0.25, "FINISHED", "run")
    assert run.data.params == {"seed": "0", "cpu_config.conv_fprop_algo": "gemm", "args.lr": "0.5"}
    assert result["drawn"] == drawn_without_sinks(experiment, tmp_path)
    assert mlflow.active_run() is None
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "elsewhere").as_uri())
    run_experiment(read(experiment("[mlflow]")), str(tmp_path / "other"))
    assert (tmp_path / "elsewhere").exists()
    assert not (tmp_path / "other" / "mlruns").exists()


def test_wandb(experiment: Experiment, tmp_path: Path) -> None:
    """In a process of its own: its service leaves threads behind."""
    pytest.importorskip("wandb")
    command = [sys.executable, "-m", "msctx", "run", experiment("[wandb]"), "--out", str(tmp_path / "run"), "--json"]
    offline = {**os.environ, "WANDB_MODE": "offline"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=offline)
    assert done.returncode == 0, done.stderr
    assert "MsctxWarning" not in done.stderr
    result = json.loads(done.stdout)
    assert [*(tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")]
    assert result["restored"]
    assert result["drawn"] == drawn_without_sinks(experiment, tmp_path)

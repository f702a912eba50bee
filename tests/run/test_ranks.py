"""Several processes that are one run: one report, one folder."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import HashStore

from msctx.errors import FileError
from msctx.native import distributed
from msctx.options import Layer, carried
from msctx.run import ranks

EXPERIMENT = "context: {{seed: 0}}\nexperiment: {{name: two, entry: entry.py:main}}\nrecord: {{dir: {where}}}\n"
ENTRY = """
import os
def main(run):
    run.log(rank=int(os.environ["RANK"]))
    return {"rank": int(os.environ["RANK"])}
"""


def launched(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    (folder / "two.yaml").write_text(EXPERIMENT.format(where=folder / "runs"))
    (folder / "entry.py").write_text(ENTRY)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "-m", "msctx", "run", str(folder / "two.yaml"), *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder, check=False)


@pytest.mark.full
def test_torchrun_is_one_run(tmp_path: Path) -> None:
    done = launched(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("options carried out") == 1
    assert done.stdout.count("completed") == 1
    (folder,) = (tmp_path / "runs").iterdir()
    for number in range(2):
        assert json.loads((folder / f"rank_{number}" / "result.json").read_text())["rank"] == number
    again = launched(tmp_path, "--out", str(folder))
    assert again.returncode != 0
    assert "is not empty" in again.stderr


@pytest.mark.full
def test_a_plan_is_shown_once_and_a_sweep_is_refused(tmp_path: Path) -> None:
    done = launched(tmp_path, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("options carried out") == 1
    refused = launched(tmp_path, "--sweep", "seed=0,1")
    assert refused.returncode != 0
    assert "a sweep starts a process for each point: run it without torchrun" in refused.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("world", "rank", "expected"), [("", "", 0), ("1", "3", 0), ("4", "3", 3), ("4", "x", 0)])
def test_the_rank_is_the_launchers(world: str, rank: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", world)
    monkeypatch.setenv("RANK", rank)
    assert ranks.rank() == expected


@pytest.mark.parametrize(("restart", "expected"), [(0, "rank_0"), (2, "restart_2/rank_0")])
def test_msctx_run_numbers_restarts_itself(
    restart: int, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's agents count their own failures alone; and a rank may be the only one there is."""
    for name, value in {"WORLD_SIZE": "1", "RANK": "0", "TORCHELASTIC_RESTART_COUNT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(carried.VARIABLE, carried.pack(Layer(), restart=restart))
    assert ranks.record(str(tmp_path), "", "two").folder == tmp_path / expected


def test_rank_0_never_comes_to_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes the folder of a run that torchrun has started; the others wait as long as the store does."""
    (store := HashStore()).set_timeout(timedelta(milliseconds=10))
    monkeypatch.setattr(distributed, "agents_store", lambda name: store)
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "TORCHELASTIC_USE_AGENT_STORE": "True"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(FileError, match="rank 0 has made no run directory for 60 s"):
        ranks.record(None, str(tmp_path), "two")


def test_other_launchers_give_each_rank_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    monkeypatch.setenv("RANK", "1")
    assert "-rank_1-" in ranks.record(None, str(tmp_path), "two").folder.name
    for rank in ("1", "0"):
        monkeypatch.setenv("RANK", rank)
        assert ranks.record(str(tmp_path / "out"), "", "two").folder == tmp_path / "out" / f"rank_{rank}"
    (tmp_path / "out" / "rank_0" / "result.json").touch()
    with pytest.raises(FileError, match="is not empty"):
        ranks.record(str(tmp_path / "out"), "", "two")

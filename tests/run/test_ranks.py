"""`torchrun -m msctx run FILE`: several processes are one run: one report, one folder."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from msctx.errors import FileError
from msctx.run import launch as ranks

EXPERIMENT = "context: {seed: 0}\nexperiment: {name: two, entry: entry.py:main}\nrecord: {dir: runs}\n"
ENTRY = """
import os, pathlib
def main(run, fails_first=False):
    run.log(rank=int(os.environ["RANK"]))
    if fails_first and os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise ValueError("it is rank one")
    return {"rank": int(os.environ["RANK"])}
"""


def launched(folder: Path, *more: str, restarts: int = 0) -> subprocess.CompletedProcess[str]:
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        f"--max-restarts={restarts}",
    ]
    command = [*torchrun, "-m", "msctx", "run", "two.yaml", *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder, check=False)


@pytest.mark.full
def test_torchrun_is_one_run(folder):
    done = launched(folder, "--out", "out")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("options take effect") == 1
    assert done.stdout.count("completed") == 1
    for number in range(2):
        assert json.loads((folder / "out" / f"rank_{number}" / "result.json").read_text())["rank"] == number
    again = launched(folder, "--out", "out")
    assert again.returncode != 0
    assert "is not empty" in again.stderr


@pytest.mark.full
def test_a_restart_overwrites_what_was_recorded_before(folder):
    done = launched(folder, "args.fails_first=true", "--out", "out", restarts=1)
    assert done.returncode == 0, done.stderr
    found = [json.loads((folder / f"out/rank_{number}/result.json").read_text()) for number in range(2)]
    assert [(result["status"], result["rank"]) for result in found] == [("completed", 0), ("completed", 1)]


def test_each_rank_has_a_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert "-rank_1-" in ranks.record(None, str(tmp_path), "two").folder.name
    for rank in ("1", "0"):
        monkeypatch.setenv("RANK", rank)
        assert ranks.record(str(tmp_path / "out"), "", "two").folder == tmp_path / "out" / f"rank_{rank}"
    (tmp_path / "out" / "rank_0" / "result.json").touch()
    with pytest.raises(FileError, match="is not empty"):
        ranks.record(str(tmp_path / "out"), "", "two")

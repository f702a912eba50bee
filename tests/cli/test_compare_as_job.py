"""msctx compare --engine: the whole comparison is one job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from processes import is_running, until

from msctx.cli import main
from msctx.run.jobs import Jobs

pytest.importorskip("submitit")
SUBJECT = ("matmul", "--shape", "8x8x8", "--axis", "deterministic=OFF,ON", "--seconds", "0.001")


def compare(capsys: Any, *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["compare", *words])
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


@pytest.mark.full
def test_the_job_prints_what_the_comparison_prints(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = (*SUBJECT, "--engine", "local", "--job", "timeout_min=5", "--fail-below", "50", "--out", "compared", "--json")
    code, out, err = compare(capsys, *words)
    assert code == 1
    assert "1 of 1: 8x8x8 forward" in err
    assert "below 50: deterministic=ON: " in err
    found = json.loads(out)
    assert found == json.loads((tmp_path / "compared" / "result.json").read_text())
    assert [*tmp_path.glob(".msctx-job-*")] == []


def test_the_job_has_the_same_arguments(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []

    def one(self: Jobs, command: list[str], environment: Any, report: Callable[[str], None]) -> tuple[int, str]:
        ran.append(command)
        report("half of it\n")
        return 3, "a table\n"

    monkeypatch.setattr(Jobs, "one", one)
    words = ["conv", "--workload", "vgg16", "--batch", "2", "--quick", "--json"]
    axes = [
        "--axis",
        "deterministic=OFF,ON",
        "--axis",
        "conv_fprop_algo=['normal']",
        "conv_dgrad_algo=reference",
        "--fail-below",
        "0.9",
    ]
    code, out, err = compare(capsys, *words, *axes, "--engine", "local", "--out", str(tmp_path / "-x"))
    assert (code, out, err) == (3, "a table\n", "half of it\n")
    assert ran == [
        [
            *(sys.executable, "-m", "msctx", "compare", "--row-lines", "--workload=vgg16"),
            *("--axis=deterministic=OFF,ON", "--axis=conv_fprop_algo=['normal']", "--batch=2"),
            *("--quick", f"--out={tmp_path}/-x", "--fail-below=0.9", "--json", "--", "conv", "conv_dgrad_algo=reference"),
        ]
    ]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--engine", "ray"], "'ray' is not an engine"),
        (["--job", "timeout_min=5"], "'' is not an engine"),
        (["--engine", "local", "--job", "timeout_mn=3"], "did you mean timeout_min?"),
        (["--engine", "local", "--job", "tasks_per_node=2"], "a job is one process on one node"),
        (["--engine", "slurm"], "--engine: slurm: "),
    ],
)
def test_mistakes_about_where_it_runs(tmp_path: Path, capsys: Any, words: list[str], told: str) -> None:
    code, _, err = compare(capsys, *SUBJECT, *words, "--out", str(tmp_path / "out"))
    assert code == 2
    assert told in err
    assert not (tmp_path / "out").exists()


def test_without_submitit_it_is_named(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    code, _, err = compare(capsys, *SUBJECT, "--engine", "local")
    assert (code, "local needs submitit" in err, "pip install" in err) == (2, True, True)


def test_a_job_that_slurm_refuses(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("srun", "sbatch"):
        (tmp_path / name).write_text("#!/bin/sh\necho 'sbatch: error: invalid partition specified: gpu' >&2\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    for out in ("out", "mine"):
        code, _, err = compare(capsys, *SUBJECT, "--engine", "slurm", "--job", "slurm_partition=gpu", "--out", out)
        assert code == 2
        assert "--engine: slurm: sbatch: error: invalid partition specified: gpu" in err
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "mine").exists(), "it was there before"
    assert [*tmp_path.glob(".msctx-job-*")] == []


WAITS = """
import os, pathlib, time
def train():
    part = pathlib.Path("pids.part")
    part.write_text(f"{os.getpid()} {os.environ['SUBMITIT_LOCAL_JOB_ID']}")
    part.rename("pids")
    time.sleep(600)
"""


@pytest.mark.full
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM), (None, 5)])
def test_ctrl_c_cancels_the_job_and_a_job_that_ends_is_reported(tmp_path: Path, number: int | None, code: int) -> None:
    (tmp_path / "entry.py").write_text(WAITS)
    (tmp_path / "train.yaml").write_text("experiment: {entry: entry.py:train}\n")
    command = [sys.executable, "-m", "msctx", "compare", "train.yaml", "--axis", "deterministic=ON", "--engine", "local"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        until((tmp_path / "pids").exists)
        run, job = (int(number) for number in (tmp_path / "pids").read_text().split())
        assert is_running(run)
        if number is None:
            os.kill(job, signal.SIGINT)  # as its timeout or an operator ends it
        else:
            process.send_signal(number)
        _, err = process.communicate(timeout=300)
        assert process.returncode == code
        until(lambda: not is_running(run) and not is_running(job))
    finally:
        process.kill()
        process.wait()
    told = {signal.SIGINT: "interrupted; the job was cancelled", None: f"error: job {job}: "}
    assert told.get(number, "") in err
    assert "Traceback" not in err or number is None  # submitit shows the end of the job's log
    assert [*tmp_path.glob(".msctx-job-*")] == []

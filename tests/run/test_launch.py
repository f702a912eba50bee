"""`msctx run FILE --nproc N`: a record for each rank; how it ends."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from msctx.switches.torch_core import of_rank

EXPERIMENT = """
context: {deterministic: "ON", seed: 3, seed_by_rank: true}
experiment: {name: two, entry: entry.py:main}
record: {dir: runs}
"""
ENTRY = """
import os, time, torch, torch.distributed as dist
def main(run, fails="", sleeps=0):
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    run.log(shown_by=rank)
    print(f"rank {rank} runs\\n", end="", flush=True)
    if rank == 1 and fails == "loudly":
        raise ValueError("it is rank one")
    if rank == 1 and fails == "silently":
        os._exit(7)
    for _ in range(sleeps * 20):  # Python sees a signal that comes just before a sleep begins only at its end
        time.sleep(0.05)
    dist.all_reduce(total := torch.ones(1) * rank)
    dist.destroy_process_group()
    on, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    return {"total": total.item(), "on": on, "seed": torch.initial_seed(), "threads": threads}
"""


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "msctx", "run", "two.yaml", "--nproc", "2", *words]


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=300, cwd=folder, check=False)


def ranks(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"rank_{number}" / "result.json").read_text()) for number in range(2)]


def test_two_ranks(folder):
    done = run(folder, "--json")
    assert done.returncode == 0, done.stderr
    (made,) = (folder / "runs").iterdir()
    assert json.loads(done.stdout) == json.loads((made / "rank_0" / "result.json").read_text())
    assert "shown_by=0" in done.stderr
    assert "shown_by=1" not in done.stderr, "progress is that of rank 0"
    for number, result in enumerate(ranks(made)):
        assert (result["total"], result["on"], result["seed"], result["restored"]) == (1.0, True, of_rank(3, number), True)
        if "OMP_NUM_THREADS" not in os.environ:
            assert result["threads"] == max(1, len(os.sched_getaffinity(0)) // 2)
        assert result["status"] == "completed"


@pytest.mark.full
def test_a_rank_that_fails(folder):
    done = run(folder, "args.fails=loudly", "--out", "out", "--json")
    assert done.returncode == 5
    assert json.loads(done.stdout)["exit_code"] == 5
    assert "raise ValueError" in done.stderr
    assert "rank 1: ValueError: it is rank one" in json.loads(done.stdout)["message"]
    assert (ranks(folder / "out")[1]["status"], ranks(folder / "out")[1]["reason"]) == ("failed", "ValueError: it is rank one")
    again = run(folder, "--out", "out")
    assert again.returncode == 3
    assert "is not empty" in again.stderr


@pytest.mark.full
def test_a_rank_that_leaves_no_result(folder):
    done = run(folder, "args.fails=silently", "--out", "out")
    assert done.returncode == 7
    assert "rank 1: exit code 7" in done.stderr
    assert not (folder / "out" / "rank_1" / "result.json").exists()


@pytest.mark.full
def test_a_mistake_that_each_rank_finds_leaves_no_folder(folder):
    done = run(folder, "args.fial=1")
    assert done.returncode == 4
    assert "error: two.yaml:3:32  entry 'entry.py:main': got an unexpected keyword argument 'fial'" in done.stderr
    assert not (folder / "runs").exists()


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_is_ended_from_outside(folder, number):
    words = command("args.sleeps=60", "--out", "out")
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        running = (line for line in process.stdout if line.endswith("runs\n"))
        assert len([next(running), next(running)]) == 2
        process.send_signal(number)
        assert process.wait(60) == (130 if number == signal.SIGINT else 128 + number)
    assert {row["status"] for row in ranks(folder / "out")} == {"interrupted"}

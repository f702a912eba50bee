"""Where each start of the ranks has a store of its own, what they enter before there is a process group is compared all the same."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full
ENTRY = """
import os, signal, msctx, torch, torch.distributed as dist
def main(run, group="none", strict=False, killed=False):
    rank, is_new = int(os.environ["RANK"]), run.dir.parent.name == "restart_1"
    if group == "worker":  # its processes count as no ranks, and have what the program has set
        torch.set_float32_matmul_precision("high")
        with msctx.context(deterministic="ON", strict=strict):
            loader = torch.utils.data.DataLoader(range(2), num_workers=1, multiprocessing_context="spawn")
            return {"total": float(sum(loader))}
    if killed and not is_new and rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    with msctx.context(deterministic="ON" if rank or is_new else "OFF", strict=strict):
        pass
    if group == "env":
        dist.init_process_group("gloo")
    elif group == "file":
        dist.init_process_group("gloo", init_method=f"file://{run.dir.parent}/store", rank=rank, world_size=2)
    if group != "none":
        total = torch.ones(1)
        dist.all_reduce(total)
        dist.destroy_process_group()
        return {"total": total.item()}
"""
DIFFER = "torch.deterministic: rank "


EXPERIMENT = "context: {seed: 3}\nexperiment: {name: two, entry: entry.py:main}\n"


def run(folder: Path, *words: str, nodes: int = 1) -> list[tuple[int, str]]:
    """The exit code and the errors of each node's agent; two ranks in all."""
    command = [sys.executable, "-m", "msctx", "run", "two.yaml", "--nproc", str(2 // nodes), "--out", "out", *words]
    with socket.socket() as free:
        free.bind(("localhost", 0))
        place = f"localhost:{free.getsockname()[1]}"
    if nodes > 1:
        command += ["--nnodes", str(nodes), "--rdzv", place]
    agents = [subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) for _ in range(nodes)]
    try:
        return [(agent.returncode, err) for agent in agents for _, err in [agent.communicate(timeout=300)]]
    finally:
        for agent in agents:
            agent.kill()
            agent.communicate()


def rows(folder: Path) -> list[tuple[int, int, str]]:
    found = json.loads((folder / "out" / "ranks.json").read_text())["ranks"]
    return [(row["restart"], row["rank"], row["status"]) for row in found]


def restarted(folder: Path) -> list[tuple[int, int, str]]:
    """Without the first attempt: a rank that is ended before it has a record has no row there."""
    return [row for row in rows(folder) if row[0] > 0]


@pytest.mark.parametrize("restarts", [0, 1])
def test_workers_of_a_rank_are_not_compared(folder: Path, restarts: int) -> None:
    (ended,) = run(folder, "args.group=worker", "args.strict=true", "strict=true", "--max-restarts", str(restarts))
    assert (ended[0], "ranks differ" in ended[1]) == (0, False), ended


@pytest.mark.parametrize(
    ("group", "restarts", "nodes"), [("none", 1, 1), ("env", 1, 1), ("file", 1, 1), ("none", 0, 2), ("env", 0, 2)]
)
def test_whatever_group_the_program_makes_afterwards(folder: Path, group: str, restarts: int, nodes: int) -> None:
    ended = run(folder, f"args.group={group}", "--max-restarts", str(restarts), nodes=nodes)
    assert [code for code, _ in ended] == [0] * nodes, ended
    assert sum(err.count(DIFFER) for _, err in ended) == 1
    assert rows(folder) == [(0, 0, "completed"), (0, 1, "completed")]


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_restart_is_not_compared_with_what_was_before(folder: Path, nodes: int) -> None:
    ended = run(folder, "args.strict=true", "args.group=env", "--max-restarts", "1", nodes=nodes)
    assert [code for code, _ in ended] == [0] * nodes, ended
    assert restarted(folder) == [(1, 0, "completed"), (1, 1, "completed")]
    results = [
        file.read_text() for file in (folder / "out").glob("rank_*/result.json")
    ]  # one that the agent has ended may have none
    assert any(DIFFER in text for text in results), results


def test_a_rank_that_never_comes_holds_nobody_up(folder: Path) -> None:
    ((code, err),) = run(folder, "args.killed=true", "args.group=env", "--max-restarts", "1")
    assert code == 0, err
    assert DIFFER not in err
    assert restarted(folder) == [(1, 0, "completed"), (1, 1, "completed")]

"""A node is killed: another one takes its place, or those that are left go on: the ranks of all nodes start anew."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

ENTRY = """
import os, time, msctx, torch, torch.distributed as dist
def main(run):
    is_new = run.dir.parent.name == "restart_1"
    with msctx.context(deterministic="ON" if is_new and os.environ["RANK"] == "0" else "OFF"):
        pass
    dist.init_process_group("gloo")
    dist.barrier()
    print("rank is on\\n", end="", flush=True)  # one write: the ranks share the pipe
    if not is_new:
        time.sleep(600)
    total = torch.ones(1)
    dist.all_reduce(total)
    dist.destroy_process_group()
    return {"total": total.item()}
"""


ELASTIC = """
import time, msctx, torch, torch.distributed as dist
def main(run):
    dist.init_process_group("gloo")
    size = dist.get_world_size()
    with msctx.context(deterministic="ON"):
        while run.dir.parent.name != "restart_2":
            total = torch.ones(1)
            dist.all_reduce(total)
            print(f"{size} on, together {total.item():g}", flush=True)
            time.sleep(0.1)
    dist.destroy_process_group()
    return {"size": size}
"""


class Nodes:
    """The agents of nodes, each with one rank, which are ended with the test."""

    def __init__(self, folder: Path, entry: str, *words: str) -> None:
        (folder / "two.yaml").write_text("experiment: {name: two, entry: entry.py:main}\n")
        (folder / "entry.py").write_text(entry)
        with socket.socket() as free:
            free.bind(("localhost", 0))
            self.place = f"localhost:{free.getsockname()[1]}"
        self._folder = folder
        self._command = [sys.executable, "-m", "msctx", "run", "two.yaml", "--nproc", "1", "--rdzv", self.place, "--out", "out"]
        self._command += words
        self.agents: list[subprocess.Popen[str]] = []

    def start(self) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        self.agents.append(subprocess.Popen(self._command, cwd=self._folder, stdout=pipe, stderr=pipe, text=True))
        return self.agents[-1]

    def rows(self) -> list[tuple[int, int, str]]:
        found = json.loads((self._folder / "out" / "ranks.json").read_text())["ranks"]
        return [(row["restart"], row["rank"], row["status"]) for row in found]

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *_: object) -> None:
        for agent in self.agents:
            agent.kill()
            agent.communicate()


def shows(agent: subprocess.Popen[str], text: str) -> bool:
    """Waits for a line of its output."""
    assert agent.stdout is not None
    return any(text in line for line in agent.stdout)


@pytest.mark.full
def test_without_restarts_of_its_own(tmp_path: Path) -> None:
    """The new ranks do not find the addresses of those that have ended, and are compared with each other."""
    with Nodes(tmp_path, ENTRY, "--nnodes", "2") as nodes:
        first = nodes.start()  # it has the store by which nodes find each other
        until_it_listens(nodes.place)
        second = nodes.start()
        assert shows(first, "is on")
        assert shows(second, "is on")
        second.send_signal(signal.SIGKILL)
        third = nodes.start()
        ended = [agent.communicate(timeout=300)[1] for agent in (first, third)]
        assert [first.returncode, third.returncode] == [0, 0], ended
    assert nodes.rows()[-2:] == [(1, 0, "completed"), (1, 1, "completed")]
    assert any("ranks differ in what they compute" in err for err in ended), ended


@pytest.mark.full
def test_a_node_that_goes_away_and_one_that_goes_on(tmp_path: Path) -> None:
    """A second one comes, and is killed; the first, whose rank then has nobody to wait for, goes on alone."""
    with Nodes(tmp_path, ELASTIC, "--nnodes", "1:2", "--max-restarts", "1") as nodes:
        first = nodes.start()
        assert shows(first, "1 on, together 1")
        second = nodes.start()
        assert shows(first, "2 on, together 2")
        second.send_signal(signal.SIGKILL)
        _, errors = first.communicate(timeout=300)
        assert first.returncode == 0, errors
    rows = nodes.rows()
    assert [(restart, rank) for restart, rank, _ in rows] == [(0, 0), (1, 0), (1, 1), (2, 0)]
    assert rows[-1] == (2, 0, "completed")
    assert json.loads((tmp_path / "out" / "restart_2" / "rank_0" / "result.json").read_text())["size"] == 1


def until_it_listens(place: str) -> None:
    host, _, port = place.partition(":")
    end = time.monotonic() + 300  # however busy the machine is
    while True:
        try:
            socket.create_connection((host, int(port))).close()
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.1)
        else:
            return

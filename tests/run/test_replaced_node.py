"""A node is killed, and another one takes its place: the ranks of all nodes start anew."""

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
    print("rank is on", flush=True)
    if not is_new:
        time.sleep(600)
    total = torch.ones(1)
    dist.all_reduce(total)
    dist.destroy_process_group()
    return {"total": total.item()}
"""


@pytest.mark.full
def test_without_restarts_of_its_own(tmp_path: Path) -> None:
    """The new ranks do not find the addresses of those that have ended, and are compared with each other."""
    (tmp_path / "two.yaml").write_text("experiment: {name: two, entry: entry.py:main}\n")
    (tmp_path / "entry.py").write_text(ENTRY)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        place = f"localhost:{free.getsockname()[1]}"
    command = [
        sys.executable,
        "-m",
        "msctx",
        "run",
        "two.yaml",
        "--nproc",
        "1",
        "--nnodes",
        "2",
        "--rdzv",
        place,
        "--out",
        "out",
    ]
    agents: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        agents.append(subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=subprocess.PIPE, text=True))
        return agents[-1]

    try:
        first = start()  # it has the store by which nodes find each other
        until_it_listens(place)
        second = start()
        for agent in (first, second):
            assert agent.stdout is not None
            assert any("is on" in line for line in agent.stdout)
        second.send_signal(signal.SIGKILL)
        third = start()
        ended = [agent.communicate(timeout=300)[1] for agent in (first, third)]
        assert [first.returncode, third.returncode] == [0, 0], ended
    finally:
        for agent in agents:
            agent.kill()
            agent.communicate()
    rows = [row for row in json.loads((tmp_path / "out" / "ranks.json").read_text())["ranks"] if row["restart"]]
    assert [(row["restart"], row["rank"], row["status"]) for row in rows] == [(1, 0, "completed"), (1, 1, "completed")]
    assert any("ranks differ in what they compute" in err for err in ended), ended


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

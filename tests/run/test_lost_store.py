"""The store by which ranks found each other is killed, or hangs: the training goes on, and what needs the store reports it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import until

STORE = """
import time
from torch.distributed import TCPStore
store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
time.sleep(1200)
"""
TRAIN = """
import os, sys, time, torch, torch.distributed as dist, msctx

rank, at = int(os.environ["RANK"]), sys.argv[1]
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def step():
    optimizer.zero_grad()
    model(torch.full((2, 4), 1.0 + rank)).sum().backward()
    optimizer.step()

def here(place):
    if place == at:
        open(f"here.{rank}", "w").close()
        while not os.path.exists("gone"):
            time.sleep(0.05)

step()  # gloo's ranks are connected from here on
here("entering")
with msctx.context(deterministic="ON", replica_check=1, hccl_timeout=600).watch(model):
    for number in range(6):
        if number == 3:
            here("training")
        step()
    here("leaving")
with msctx.context(deterministic="ON"):
    step()
print([p.tolist() for p in model.parameters()], end="\\n", flush=True)
dist.destroy_process_group()
"""
UNKNOWN = "whether all ranks have the same options is unknown: the store by which they found each other is lost"
NOT_COMPARED = "replica_check: the store of the process group gave no answer: from here on nothing is compared"


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hangs"])
@pytest.mark.parametrize("at", ["entering", "training", "leaving"])
def test_the_training_goes_on(tmp_path: Path, at: str, number: signal.Signals) -> None:
    """Who waited for the store itself would wait for torch's half an hour."""
    store = subprocess.Popen([sys.executable, "-c", STORE], stdout=subprocess.PIPE, text=True)
    assert store.stdout is not None
    port = store.stdout.readline().strip()
    env = os.environ | {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    env["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", TRAIN, at],
            cwd=tmp_path,
            env=env | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        until(lambda: all((tmp_path / f"here.{rank}").exists() for rank in range(2)))
        store.send_signal(number)
        (tmp_path / "gone").touch()
        ended = [rank.communicate(timeout=300) for rank in ranks]
    finally:
        for process in (*ranks, store):
            process.kill()
            process.communicate()
    assert [rank.returncode for rank in ranks] == [0, 0], ended
    weights = {out for out, _ in ended}
    assert len(weights) == 1
    assert weights != {""}
    for _, errors in ended:
        assert (errors.count(UNKNOWN), errors.count(NOT_COMPARED)) == (int(at == "entering"), int(at != "leaving"))

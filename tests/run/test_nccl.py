"""`msctx run --nproc 1` with NCCL: one GPU is one rank."""

import json
import subprocess
import sys

import pytest
import torch

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")]

EXPERIMENT = """
context: {deterministic: "ON", seed: 3, hccl_timeout: 300}
experiment: {name: one, entry: entry.py:main}
record: {dir: runs}
"""
ENTRY = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(0)
    net = DistributedDataParallel(torch.nn.Linear(8, 4).cuda(), device_ids=[0])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.ones(2, 8, device="cuda")).square().sum().backward()
        optimizer.step()
    total = torch.ones(1, device="cuda") * 5
    dist.all_reduce(total)
    limit = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cuda")).options._timeout.total_seconds()
    dist.destroy_process_group()
    return {"total": total.item(), "limit": limit, "on": torch.are_deterministic_algorithms_enabled()}
"""


def test_a_rank_on_a_gpu(tmp_path):
    (tmp_path / "one.yaml").write_text(EXPERIMENT)
    (tmp_path / "entry.py").write_text(ENTRY)
    command = [sys.executable, "-m", "msctx", "run", "one.yaml", "--nproc", "1", "--json"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert found.returncode == 0, found.stderr[-3000:] + found.stdout[-3000:]
    result = json.loads(found.stdout)
    assert (result["total"], result["limit"], result["on"], result["status"]) == (5.0, 300.0, True, "completed")

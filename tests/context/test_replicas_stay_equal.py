"""deterministic=ON on ranks: after 500 steps all have the same weights, which they find again in a second run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from ranks import torchrun

PROGRAM = """
import hashlib, os, torch, torch.distributed as dist, msctx
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
found = {"DDP": set(), "FSDP2": set()}
for kind in [*found] * 2:
    with msctx.context(deterministic="ON", seed=7, strict=True):
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
        if kind == "DDP":
            model = nn.parallel.DistributedDataParallel(model)
        else:
            mesh = init_device_mesh("cpu", (ranks,))
            for module in model[0], model[3], model:
                fully_shard(module, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        torch.manual_seed(100 + rank)
        for _ in range(500):
            optimizer.zero_grad()
            (model(torch.randn(8, 16)) - 1).square().mean().backward()
            optimizer.step()
    weights = [p.full_tensor() if kind == "FSDP2" else p for p in model.parameters()]
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in weights)).hexdigest()
    ours = [None] * ranks
    dist.all_gather_object(ours, digest)
    assert len(set(ours)) == 1, (kind, ours)
    found[kind].add(digest)
assert [*map(len, found.values())] == [1, 1], found
dist.barrier()
os._exit(0)  # torch 2.13 may abort when it ends the groups of a mesh
"""


@pytest.mark.full
def test_replicas_stay_equal(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    done = subprocess.run(torchrun(2, program), capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]

"""Observers in the processes of one run (torch.distributed): each has its own reports and folders, and none waits for another."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TRAINS = """
import json, sys, warnings
import torch, msctx
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

rank, folder = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
group = dist.distributed_c10d._get_default_group()
with msctx.context():  # the first block compares the options of the ranks
    pass

class Scaled(nn.Module):
    factor = 1.0
    def forward(self, x):
        return x * self.factor

def trained(planted=False, **options):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), Scaled(), nn.Linear(4, 1))
    net[1].factor = 3e38 if planted and rank == 1 else 1.0
    ddp = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    before = group._get_sequence_number_for_group()
    with warnings.catch_warnings(record=True) as found, msctx.context(**options).watch(net):
        warnings.simplefilter("always")
        for _ in range(2):
            ddp(torch.full((2, 4), 100.0)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        if rank == 0:  # alone
            with msctx.context(**options):
                torch.ones(1).exp()
    reports = [text for one in found if (text := str(one.message)).startswith("overflow")]
    return {"reports": reports, "collectives": group._get_sequence_number_for_group() - before}

dump = {"enable_dump": True, "dump_path": f"{folder}/dump", "dump_data": "stats"}
found = [
    trained(),
    trained(session={"enable_dump_debug": True, "dump_path": f"{folder}/overflow"}, planted=True),
    trained(session=dump),
    trained(session=dump, dump_format="msprobe"),
    trained(env_config_path=f"{folder}/env.json"),
]
print(json.dumps(found))
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two ranks have trained without an observer, and under each."""
    path = tmp_path_factory.mktemp("ranks")
    (path / "env.json").write_text(json.dumps({"rdr": {"enable": True, "mode": 2, "path": str(path / "recorded")}}))
    ranks = [
        subprocess.Popen([sys.executable, "-c", TRAINS, str(rank), str(path)], cwd=path, text=True, stdout=-1, stderr=-1)
        for rank in (0, 1)
    ]
    try:
        outputs = [rank.communicate(timeout=200) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for number, (rank, (out, errors)) in enumerate(zip(ranks, outputs, strict=True)):
        assert rank.returncode == 0, errors
        (path / f"found{number}.json").write_text(out.splitlines()[-1])
    return path


def found(folder: Path, rank: int) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = json.loads((folder / f"found{rank}.json").read_text())
    return result


@pytest.mark.full
def test_no_observer_adds_a_collective(folder: Path) -> None:
    assert len({one["collectives"] for rank in (0, 1) for one in found(folder, rank)}) == 1


@pytest.mark.full
def test_the_rank_that_made_an_overflow_is_named_and_the_other_reports_what_came_in(folder: Path) -> None:
    came, made = (found(folder, rank)[1]["reports"] for rank in (0, 1))
    assert made[0].startswith("overflow in step 0 of rank 1: aten::mul in module 1, forward pass, ")
    assert "from finite inputs" in made[0]
    assert all(report.startswith("overflow in step 0 of rank 0: ") and "not finite before: " in report for report in came)
    assert {path.name.partition(".")[0] for path in folder.glob("overflow/*/1/Net/0/0/*.npy")} >= {"mul"}
    assert not [*folder.glob("overflow/*/0/Net/0/0/mul.*")]


@pytest.mark.full
def test_each_rank_dumps_into_its_own_folder(folder: Path) -> None:
    for rank in (0, 1):
        assert (folder / f"dump/rank_{rank}/Net/0/1/statistic.csv").exists()
        calls = json.loads((folder / f"dump/step1/rank{rank}/dump.json").read_text())["data"]
        assert "Aten.addmm.1.forward" in calls
        assert (folder / f"dump/step2/rank{rank}/dump.json").exists() is (rank == 0), "what ran there alone"


@pytest.mark.full
def test_each_rank_records_its_own_operators_with_the_collectives(folder: Path) -> None:
    for rank in (0, 1):
        (file, *_) = folder.glob(f"recorded/rank_{rank}/rdr/*.json")
        record = json.loads(file.read_text())
        names = [row["operator"] for row in record["operators"]]
        assert "aten::addmm" in names
        assert any(name.startswith("c10d::allreduce") for name in names), names
        assert ("aten::exp" in names) is (rank == 0)
        assert "gloo:all_reduce" in [one["profiling_name"] for one in record["collectives"]["entries"]]

"""Observers in the processes of one run: each has its own reports and folders, and none adds a collective or waits for another."""

import json
from pathlib import Path

import pytest
from ranks import two_ranks

TRAINS = """
from torch.nn.parallel import DistributedDataParallel

class Scaled(nn.Module):
    factor = 1.0
    def forward(self, x):
        return x * self.factor

def trained(rank, planted=False, **options):
    "The reports of overflows, and how many collectives there were"
    group = dist.distributed_c10d._get_default_group()
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
    return reports, group._get_sequence_number_for_group() - before

def test(rank):
    with msctx.context():  # the first block compares the options of the ranks
        pass
    dump = {"enable_dump": True, "dump_path": "dump", "dump_data": "stats"}
    _, collectives = trained(rank)
    reports, counted = trained(rank, session={"enable_dump_debug": True, "dump_path": "overflow"}, planted=True)
    if rank:
        assert reports[0].startswith("overflow in step 0 of rank 1: aten::mul in module 1, forward pass, "), reports
        assert "from finite inputs" in reports[0], reports
    else:
        assert all(r.startswith("overflow in step 0 of rank 0: ") and "not finite before: " in r for r in reports), reports
    for options in ({"session": dump}, {"session": dump, "dump_format": "msprobe"}, {"env_config_path": "env.json"}):
        assert trained(rank, **options)[1] == counted == collectives, options
"""


@pytest.mark.full
def test_two_ranks(tmp_path: Path) -> None:
    (tmp_path / "env.json").write_text(json.dumps({"rdr": {"enable": True, "mode": 2, "path": str(tmp_path / "recorded")}}))
    two_ranks(tmp_path, TRAINS)
    assert {path.name.partition(".")[0] for path in tmp_path.glob("overflow/*/1/Net/0/0/*.npy")} >= {"mul"}
    assert not [*tmp_path.glob("overflow/*/0/Net/0/0/mul.*")]
    for rank in (0, 1):
        assert (tmp_path / f"dump/rank_{rank}/Net/0/1/statistic.csv").exists()
        calls = json.loads((tmp_path / f"dump/step1/rank{rank}/dump.json").read_text())["data"]
        assert "Aten.addmm.1.forward" in calls
        assert (tmp_path / f"dump/step2/rank{rank}/dump.json").exists() is (rank == 0), "what ran there alone"
        (file, *_) = tmp_path.glob(f"recorded/rank_{rank}/rdr/*.json")
        record = json.loads(file.read_text())
        names = [row["operator"] for row in record["operators"]]
        assert "aten::addmm" in names
        assert any(name.startswith("c10d::allreduce") for name in names), names
        assert ("aten::exp" in names) is (rank == 0)
        assert "gloo:all_reduce" in [one["profiling_name"] for one in record["collectives"]["entries"]]

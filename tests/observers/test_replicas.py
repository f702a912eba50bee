"""replica_check: a parameter that differs between ranks is named."""

from pathlib import Path

import pytest
import torch
from ranks import two_ranks
from torch import nn

import msctx
from msctx.observers import bprop_and_replica_checks, steps

BODY = """
def test(rank):
    torch.manual_seed(0)
    parts = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
    model = nn.ModuleDict({"inner": nn.parallel.DistributedDataParallel(nn.Sequential(*parts))})
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def told(change=lambda: None, options={"replica_check": 2}):
        with warnings.catch_warnings(record=True) as found, msctx.context(**options).watch(model):
            warnings.simplefilter("always")
            for step in range(4):
                optimizer.zero_grad()
                model["inner"](torch.randn(8, 4) + rank).square().sum().backward()
                optimizer.step()
                if step == 2 and rank:
                    with torch.no_grad():
                        change()
        return [str(one.message) for one in found]

    def change():
        model["inner"].module[0].weight.view(torch.int32)[1, 1] ^= 1
        model["inner"].module[2].bias[1] += 1

    assert not told(), "each rank has its own buffers"
    text = "replica_check: after step {}, inner.0.weight differs between rank 0 and rank 1"
    found = told(change)
    assert found == [text.format(3) + ", and 1 more parameter"], found
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1)
        model["inner"].module[0].weight.fill_(rank)
    assert not told(options={"replica_check": 0})
    found = told()
    assert found == [text.format(1)], found
"""


def test_two_ranks(tmp_path: Path) -> None:
    two_ranks(tmp_path, BODY)


def test_a_single_process_compares_nothing_and_hooks_go(recwarn: pytest.WarningsRecorder) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with msctx.context(replica_check=1).watch(model):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        assert steps.current() == 1
    assert steps.current() == 0
    told = recwarn.pop(msctx.MsctxWarning).message
    assert str(told).startswith("replica_check=1 did nothing: it acts on DistributedDataParallel models")
    with msctx.context(replica_check=1), msctx.context(replica_check=0):
        assert bprop_and_replica_checks.SLOT.read() is None

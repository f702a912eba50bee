"""replica_check: a parameter that goes astray on one rank is named, and nobody waits for anybody."""

from __future__ import annotations

import itertools
import subprocess
import textwrap
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import torchrun
from torch import nn
from torch.distributed import HashStore

import msctx
from msctx.native import distributed
from msctx.observers import replicas, steps


class Ranks:
    """A store, and this process as one rank after the other, each with its own replica."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
        self.store: Any = HashStore()
        self.rank = 0
        self.models = []
        self.numbers: list[Any] = [defaultdict(itertools.count) for _ in range(size)]
        self.monkeypatch = monkeypatch
        self.new_model()
        monkeypatch.setattr(distributed, "rank", lambda: self.rank)
        monkeypatch.setattr(distributed, "store", lambda: self.store)
        monkeypatch.setattr("torch.distributed.get_process_group_ranks", lambda group: [*range(size)])
        monkeypatch.setattr(replicas, "_replicated", self._replicated)

    def _replicated(self, model: nn.Module) -> Iterator[tuple[str, Any]]:
        yield "", self.parallel[self.rank]

    def new_model(self) -> None:
        """From here on another one is watched."""
        self.models = []
        for _ in self.numbers:
            torch.manual_seed(0)
            self.models.append(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)))
        self.parallel = [Parallel(model) for model in self.models]

    def train(self) -> None:
        with torch.no_grad():
            for model in self.models:
                model[0].weight += 1

    def check(self, step: int) -> list[str]:
        """One check on all ranks, in a block of its own; what is reported."""
        watched, found = nn.ReLU(), []
        for rank in range(len(self.models)):
            self.rank = rank
            self.monkeypatch.setattr(replicas, "_numbers", self.numbers[rank])
            with msctx.context().watch(watched), warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                replicas.Check(1)._ended(step)
            found += [str(one.message) for one in caught]
        return found


class Parallel:
    """What a check takes of DistributedDataParallel."""

    process_group = None

    def __init__(self, model: nn.Module) -> None:
        self.named_parameters = model.named_parameters


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Ranks:
    return Ranks(monkeypatch, 4)


def test_equal_replicas_are_silent_and_leave_nothing_in_the_store(ranks: Ranks) -> None:
    keys = set()
    for step in range(6):
        assert ranks.check(step) == []
        keys.add(ranks.store.num_keys())
    assert keys == {2, 4}, "two a check, of the last two"


def test_one_bit_of_one_weight(ranks: Ranks) -> None:
    with torch.no_grad():
        ranks.models[2][1].weight.view(torch.int32)[1, 1] ^= 1
    (text,) = ranks.check(6)
    assert text == "replica_check: after step 6, 1.weight differs between ranks 0-1 and rank 2"


def test_the_rank_that_came_first_may_be_the_one_astray(ranks: Ranks) -> None:
    with torch.no_grad():
        ranks.models[0][0].bias[0] = float("nan")
        ranks.models[0][1].bias[0] += 1
    found = ranks.check(0)
    assert found[-1] == "replica_check: after step 0, 0.bias differs between ranks 1-3 and rank 0, and 1 more parameter"


def test_replicas_that_differ_for_long_leave_nothing_more_in_the_store(ranks: Ranks) -> None:
    with torch.no_grad():
        ranks.models[0][0].bias[0] += 1
    keys = set()
    for step in range(6):
        ranks.check(step)
        keys.add(ranks.store.num_keys())
    assert keys == {5, 10}, "two a check, and one for each that differs, of the last two"


def test_blocks_and_models_that_follow_each_other_are_not_compared(ranks: Ranks) -> None:
    for _ in range(2):
        for _ in range(2):
            ranks.train()
            assert ranks.check(0) == []
        ranks.new_model()


def test_a_restart_is_not_compared_with_what_ran_before(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun's agent keeps one store for all restarts, whose ranks count their models and checks anew."""
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    for restart in range(2):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(restart))
        ranks.train()
        assert ranks.check(0) == []
        ranks.numbers = [defaultdict(itertools.count) for _ in ranks.models]
        ranks.parallel = [Parallel(model) for model in ranks.models]


def test_names_that_one_rank_alone_has(ranks: Ranks) -> None:
    ranks.models[0].register_parameter("more", nn.Parameter(torch.zeros(1)))
    assert ranks.check(0)[-1] == "replica_check: after step 0, more differs between ranks 1-3 and rank 0"


def test_a_store_without_an_answer_is_asked_once(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr(distributed, "within", lambda seconds, call: asked.append(seconds))
    monkeypatch.setattr(distributed, "_silent", set[tuple[int, str]]())
    assert "from here on nothing is compared" in ranks.check(0)[0]
    assert {*ranks.check(1)} == {replicas.NO_ANSWER}
    assert len(asked) == 1


def test_negative_zero_and_another_dtype_differ() -> None:
    digest = replicas._digest
    assert digest(torch.zeros(3)) != digest(-torch.zeros(3))
    assert digest(torch.zeros(3)) != digest(torch.zeros(3, dtype=torch.int32))
    assert digest(torch.ones(2, 3).T) == digest(torch.ones(3, 2))


def test_a_single_process_compares_nothing_and_hooks_go() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with msctx.context(replica_check=1).watch(model):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        assert steps.current() == 1
    assert steps.current() == 0
    with msctx.context(replica_check=1), msctx.context(replica_check=0):
        assert replicas.SLOT.read() is None


@pytest.mark.full
def test_real_ranks(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
            import msctx, torch, torch.distributed as dist
            from torch import nn
            dist.init_process_group("gloo")
            torch.manual_seed(0)
            net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for block in range(2):
                with msctx.context(replica_check=2).watch(net):
                    for step in range(8):
                        optimizer.zero_grad()
                        net(torch.randn(8, 4) + dist.get_rank()).square().sum().backward()
                        optimizer.step()
                        if block == 1 and step == 4 and dist.get_rank() == 1:
                            with torch.no_grad():
                                net.module[0].weight.view(torch.int32)[0, 0] ^= 1
                        dist.barrier()
            dist.destroy_process_group()
        """)
    )
    command = torchrun(2, tmp_path / "train.py")
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "replica_check: after step 5, 0.weight differs between" in done.stderr
    assert "after step 1" not in done.stderr, "nothing is left of the block before"
    assert "after step 3" not in done.stderr, "buffers belong to their rank"


@pytest.mark.filterwarnings("error")
def test_without_a_model_it_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "rank", lambda: 0)
    check = replicas.Check(1)
    with pytest.raises(msctx.MsctxWarning, match="there is nothing to compare"):
        check._ended(0)

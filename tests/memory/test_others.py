"""O1 beside what others do: other processes, other threads, other hooks on what is saved."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode
from trained_blocks import rows

import msctx

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_left_in_the_pool")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.f, self.g = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.g(torch.sigmoid(self.f(x)))


def trained(model: nn.Module, steps: int = 4, around: Callable[[], Any] | None = None) -> list[torch.Tensor]:
    found = []
    for _ in range(steps):
        model.zero_grad()
        if around is None:
            loss = model(torch.ones(8, 16)).square().mean()
        else:
            with around():
                loss = model(torch.ones(8, 16)).square().mean()
        loss.backward()
        found += [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return found


def test_hooks_of_the_program_on_what_is_saved_see_all_of_it() -> None:
    """A hook that keeps activations in fewer bits, say."""

    def in_half() -> saved_tensors_hooks:
        return saved_tensors_hooks(lambda t: t.half() if t.shape == (8, 64) else t, lambda t: t.float())

    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block())
    plain = trained(model, around=in_half)
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(model)
        under = trained(model, around=in_half)
        reasons = {row["reason"] for row in rows(model)}
    assert all(map(torch.equal, plain, under))
    assert not all(map(torch.equal, plain, trained(model)))
    assert len(reasons) == 1
    assert "hooks on saved tensors are in force" in reasons.pop()


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_no_number_that_another_thread_draws_comes_twice(draw: Callable[[], float]) -> None:
    """One that loads and augments data, say."""
    drawn: list[float] = []
    end = threading.Event()

    def load() -> None:
        while not end.is_set():
            drawn.append(draw())
            time.sleep(1e-4)

    other = threading.Thread(target=load)
    model = nn.Sequential(*[Block() for _ in range(4)])
    other.start()
    try:
        with msctx.context(memory_optimize_level="O1") as ctx:
            ctx.watch(model)
            trained(model, 20)
            assert all(row["recomputed"] for row in rows(model))
    finally:
        end.set()
        other.join()
    assert len({*drawn}) == len(drawn) > 20


class Scales(Block):
    """Its code does not name random numbers."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.draw()


@pytest.mark.usefixtures("another_thread")
@pytest.mark.parametrize("draw", [random.random, np.random.rand, lambda: random.random()])
def test_numbers_that_a_block_draws_beside_another_thread(draw: Callable[[], float]) -> None:
    def drawn(**options: Any) -> list[Any]:
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        model = nn.Sequential(Scales(draw), Scales(draw))
        with msctx.context(**options) as ctx:
            ctx.watch(model)
            found: list[Any] = [float(gradient.sum()) for gradient in trained(model)]
            assert not options or all(row["recomputed"] for row in rows(model))
        return [*found, random.random(), np.random.rand()]

    assert drawn() == drawn(memory_optimize_level="O1")


class SeedsBy(Block):
    """Its code does not name how it seeds, and leaves the generator as it was."""

    def __init__(self, seed: Callable[[], object]) -> None:
        super().__init__()
        self.seed = seed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seed()
        return super().forward(torch.dropout(x, 0.5, True))


@pytest.mark.usefixtures("another_thread")
def test_a_block_that_seeds_beside_another_thread() -> None:
    def drawn(**options: Any) -> list[float]:
        seed = partial(torch.manual_seed, 0)
        model = nn.Sequential(SeedsBy(seed), SeedsBy(seed))
        found = []
        with msctx.context(**options) as ctx:
            ctx.watch(model)
            for _ in range(4):
                made = model(torch.ones(8, 16))
                (made * torch.rand(1)).sum().backward()
                found.append(float(torch.rand(1)))
        return found

    assert drawn() == drawn(memory_optimize_level="O1")


def test_a_backward_pass_whose_operations_are_counted() -> None:
    model = nn.Sequential(*[Block() for _ in range(4)])
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(model)
        trained(model)
        loss = model(torch.ones(8, 16)).square().mean()
        with FlopCounterMode(display=False) as counted:
            loss.backward()
    assert counted.get_total_flops()


@pytest.mark.full
def test_blocks_that_communicate_are_left_alone(passes: Callable[..., str]) -> None:
    """Each process decides for itself what it computes again: its messages would meet others of the other process."""
    passes(
        """
        import datetime, os, tempfile, torch, msctx
        import torch.distributed as dist
        from torch import nn
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(16, 32), nn.Linear(32, 16)
            def forward(self, x):
                return x + self.b(torch.relu(self.a(x)))

        class Reduced(Block):
            later = False
            def forward(self, x):
                made = super().forward(x)
                if self.later:
                    dist.all_reduce(made.detach())
                return made

        def alone(rank, file):
            torch.set_num_threads(1)
            wait = datetime.timedelta(seconds=60)
            dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2, timeout=wait)
            mesh = init_device_mesh("cpu", (2,))
            for kind in (Block, Reduced, None):
                torch.manual_seed(0)
                model = nn.Sequential(*[(kind or Block)() for _ in range(4)])
                if kind is None:
                    for block in model:
                        parallelize_module(block, mesh, {"a": ColwiseParallel(), "b": RowwiseParallel()})
                with msctx.context(memory_optimize_level="O1") as ctx:
                    ctx.watch(model)
                    for _ in range(3):
                        model(torch.ones(4, 16)).sum().backward()
                    found = msctx.memory_stats()["recomputed"]
                ours = [row for row in found if row["recomputed"]]
                reasons = {row["reason"] for row in found}
                if kind is Block:
                    assert ours, found
                else:
                    assert not ours, found
                    assert all("communicates with other processes" in reason for reason in reasons), reasons
            dist.destroy_process_group()

        if __name__ == "__main__":
            with tempfile.TemporaryDirectory() as folder:
                torch.multiprocessing.start_processes(alone, (folder + "/store",), nprocs=2, start_method="fork")
        """
    )

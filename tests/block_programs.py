"""Blocks and the training of them that shows each bit: gradients, states, random numbers."""

from __future__ import annotations

import random
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from trained_blocks import rows

import msctx

WIDTH = 6
Forward = Callable[..., torch.Tensor]
HEADS: list[int] = [0]
LOG: list[int] = []


class Block(nn.Module):
    """``step`` counts its passes; the second and later ones do what ``later`` does."""

    def __init__(self) -> None:
        super().__init__()
        self.f, self.g = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.step = 0
        self.state = types.SimpleNamespace(average=torch.zeros(WIDTH), counts={"seen": 0}, log=[])
        self.adapter: nn.Module | None = None
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("book", torch.zeros(400, 64))  # too large to be copied in each pass
        self.register_buffer("var", torch.ones(WIDTH))

    def later(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        if self.step > 2:
            x = self.later(x)
        return torch.tanh(self.g(torch.tanh(self.f(x))))


class Later(Block):
    def __init__(self, later: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self._later = later

    def later(self, x: torch.Tensor) -> torch.Tensor:
        return self._later(self, x)


def trained(
    make: Callable[[], list[nn.Module]], between: Callable[[nn.Module], None] | None = None, **options: Any
) -> list[Any]:
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(0)
    LOG.clear()
    HEADS[:] = [0]
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ModuleList(make()), nn.Identity())
    model.forward = types.MethodType(lambda self, x: in_turn(self[1], self[0](x)), model)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    found: list[Any] = []
    with msctx.context(**options) as ctx:
        ctx.watch(model)
        for _ in range(5):
            optimizer.zero_grad()
            loss = model(torch.randn(4, WIDTH)).square().mean()
            if between is not None:
                between(model)
            loss.backward()
            optimizer.step()
            found += [loss.detach(), *(None if p.grad is None else p.grad.clone() for p in model.parameters())]
        found += [row["recomputed"] for row in rows(model)] if options else []
    for module in model.modules():
        # a graph that the block holds, and that holds the block: so it is with every checkpoint
        vars(module).pop("entropy", None)
    found += [
        *(p.detach().clone() for p in model.parameters()),
        *model.buffers(),
        torch.rand(2),
        random.random(),
        np.random.rand(),
    ]
    return [*found, len(LOG)]


def in_turn(blocks: Any, x: torch.Tensor) -> torch.Tensor:
    for block in blocks:
        x = block(x)
        x = getattr(x, "hidden", x)
    return x


def are_same(make: Callable[[], list[nn.Module]], *, recomputed: bool | None = True) -> None:
    plain, under = trained(make), trained(make, memory_optimize_level="O1")
    decided = [value for value in under if isinstance(value, bool)]
    under = [value for value in under if not isinstance(value, bool)]
    assert len(plain) == len(under)
    differing = [
        n
        for n, (a, b) in enumerate(zip(plain, under, strict=True))
        if not (torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b)
    ]
    assert not differing
    assert recomputed is None or decided == [recomputed] * len(decided)

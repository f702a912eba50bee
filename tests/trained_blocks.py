"""Models of blocks, and their training, for the tests of what recomputes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

import msctx
from msctx.memory import recompute


class Residual(nn.Module):
    """Has dropout (random numbers), batch normalisation (buffers) and spectral normalisation (buffers that its output depends on)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolution = spectral_norm(nn.Conv2d(channels, channels, 3, padding=1))
        self.normalisation = nn.BatchNorm2d(channels)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return x + scale * self.dropout(torch.relu(self.normalisation(self.convolution(x))))


def network(count: int = 5) -> nn.Sequential:
    torch.manual_seed(0)
    stem, head = nn.Conv2d(3, 16, 3), nn.Sequential(nn.Flatten(), nn.Linear(16 * 30 * 30, 10))
    return nn.Sequential(stem, nn.Sequential(*[Residual(16) for _ in range(count)]), head)


X = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def train(model: nn.Module, steps: int = 4, x: torch.Tensor = X, **options: Any) -> tuple[dict[str, torch.Tensor], list[int]]:
    """The state after some steps, and what each took at most."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    torch.manual_seed(2)
    peaks = []
    with msctx.context(**{"memory_optimize_level": "O0", **options}) as ctx:
        ctx.watch(model)
        for _ in range(steps):
            begin = msctx.memory_stats()["current_bytes"]
            msctx.reset_peak_memory_stats()
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            peaks.append(msctx.memory_stats()["peak_bytes"] - begin)
    return {name: value.clone() for name, value in model.state_dict().items()}, peaks


def rows(model: nn.Module) -> list[dict[str, Any]]:
    return [row._asdict() for row in recompute._budgets[model].rows()]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


class Perceptron(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


def stack(count: int, width: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[Perceptron(width) for _ in range(count)])

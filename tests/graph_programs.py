"""Small modules that graph mode compiles, and how often it did."""

from typing import Any

import torch
from torch import nn
from torch._dynamo.utils import counters

EAGER_GRAPHS = {"mode": "GRAPH_MODE", "enable_graph_kernel": False}
"""Nothing is generated: compiles in a moment."""


def graphs() -> int:
    return counters["stats"]["unique_graphs"]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.fc(torch.relu(self.norm(self.conv(x))).mean((2, 3)))
        return result


class Talking(nn.Module):
    """Its graph breaks at the call of print."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.said = nn.Linear(3, 2), list[Any]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.fc(x)
        print("here")
        return torch.relu(x)


def image(*shape: int) -> torch.Tensor:
    return torch.randn(shape or (2, 3, 6, 6), generator=torch.Generator().manual_seed(0))

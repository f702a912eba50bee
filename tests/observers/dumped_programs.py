"""A small model, dumped; and what is in the folder."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

import msctx


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


def dumped(path: Path, net: nn.Module, steps: int = 1, dump_format: str = "mindspore", **options: Any) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    session = {"enable_dump": True, "dump_path": str(path), **options}
    with msctx.context(session=session, dump_format=dump_format).watch(net):
        for _ in range(steps):
            net(torch.ones(1, 4)).sum().backward()
            optimizer.step()


def kinds(path: Path) -> set[str]:
    return {one.name.partition(".")[0] for one in path.rglob("*.npy")}

"""A small model, dumped; what is in the folder; and what is reported of overflows."""

import warnings
from collections.abc import Callable
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


def overflows(
    run: Callable[[], object], path: Path, debug_mode: str = "all", net: nn.Module | None = None, **options: Any
) -> list[str]:
    """The reports of overflows in *run*, in order."""
    session = {"enable_dump_debug": True, "dump_path": str(path), "dump_debug_mode": debug_mode}
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with msctx.context(session=session, **options) as ctx:
            if net is not None:
                ctx.watch(net)
            run()
    return [str(one.message) for one in found if str(one.message).startswith("overflow")]

"""What the keys of parallel_speed_up_json_path do to a training step on four ranks of this machine, by gloo.

All ranks take the same steps, in turns of a few steps under each key; the first and the last contender ask for nothing, which shows
what the machine's noise is. A profile of rank 0 shows when it computes products and when messages are under way.

    python bench/overlap.py --out bench/results/NAME-overlap.json
    python bench/overlap.py --compiled --out bench/results/NAME-overlap-compiled.json
    python bench/overlap.py --docs bench/results/NAME-overlap.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import contest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

import msctx

RANKS = 4
TURNS, STEPS = 10, 3
KEY = "parallel_speed_up_json_path."
UNASKED, AGAIN = "nothing asked", "nothing asked, again"
COMPILED = "compiled, tensor-parallel"
ON_DDP: dict[str, dict[str, Any]] = {
    UNASKED: {},
    "enable_grad_comm_opt=false": {f"{KEY}enable_grad_comm_opt": False},
    "enable_task_opt=true": {f"{KEY}enable_task_opt": True},
    AGAIN: {},
}
ON_FSDP: dict[str, dict[str, Any]] = {
    UNASKED: {},
    "enable_opt_shard_comm_opt=true": {f"{KEY}enable_opt_shard_comm_opt": True},
    "enable_opt_shard_comm_opt=false": {f"{KEY}enable_opt_shard_comm_opt": False},
    "recompute_comm_overlap=true": {f"{KEY}recompute_comm_overlap": True},
    AGAIN: {},
}
ON_CODE: dict[str, dict[str, Any]] = {
    UNASKED: {},
    "matmul_grad_comm_overlap=true": {f"{KEY}matmul_grad_comm_overlap": True},
    "enable_task_opt=true": {f"{KEY}enable_task_opt": True},
    "enable_concat_eliminate_opt=true": {f"{KEY}enable_concat_eliminate_opt": True},
    AGAIN: {},
}
CONTENDERS = {"DDP": ON_DDP, "FSDP2": ON_FSDP, COMPILED: ON_CODE}
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm")


class Column(torch.autograd.Function):
    """Before a layer of which each rank has some columns: the gradient of its input is summed over the ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return collectives.all_reduce(grad, "sum", "0")


class Row(torch.autograd.Function):
    """After a layer of which each rank has some rows: the results are summed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return collectives.all_reduce(x, "sum", "0")

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad.clone()


class Gated(nn.Module):
    """A tensor-parallel MLP whose two inner parts are put together and taken apart again."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(256, 1024 // RANKS, bias=False) for _ in range(2))
        self.down = nn.Linear(1024 // RANKS, 256, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inside = Column.apply(x)
        gate, up = torch.cat([self.gate(inside), self.up(inside)], -1).split(1024 // RANKS, -1)
        return x + Row.apply(self.down(gate.relu() * up))


def network(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == COMPILED:
        layers = nn.Sequential(*(Gated() for _ in range(6)))
        layers.compile()
        return layers
    blocks = nn.TransformerEncoder(nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True), 6)
    if kind == "DDP":
        return DistributedDataParallel(blocks, bucket_cap_mb=2)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in blocks.layers:
        fully_shard(block, mesh=mesh)
    return fully_shard(blocks, mesh=mesh)


def steps(kind: str, contenders: dict[str, dict[str, Any]]) -> tuple[dict[str, list[float]], dict[str, list[list[Any]]]]:
    """The seconds of a step in each turn of each contender, and a profile of one step."""
    model = network(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(4, 32, 256)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    profiles = {}
    for _ in range(2):
        step()
    for turn in range(TURNS):
        for name, options in [*contenders.items()][:: 1 if turn % 2 else -1]:
            with msctx.context(**options).watch(model):
                step()
                dist.barrier()
                began = time.perf_counter()
                for _ in range(STEPS):
                    step()
                seconds[name].append((time.perf_counter() - began) / STEPS)
                if turn == TURNS - 1:
                    with profile(activities=[ProfilerActivity.CPU]) as found:
                        step()
                    profiles[name] = [*spans(found)]
    return seconds, profiles


def spans(found: profile) -> Iterator[list[Any]]:
    """``[what, begin, end]`` in milliseconds from the begin of the profile: products and messages."""
    events = [event for event in found.events() if event.name in PRODUCTS or event.name.startswith("gloo:")]
    start = min(event.time_range.start for event in events)
    for event in events:
        kind = "product" if event.name in PRODUCTS else event.name.removeprefix("gloo:")
        yield [kind, round((event.time_range.start - start) / 1e3, 3), round((event.time_range.end - start) / 1e3, 3)]


def rank(number: int, folder: str, kinds: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=number, world_size=RANKS)
    found = {kind: steps(kind, contenders) for kind, contenders in CONTENDERS.items() if kind in kinds}
    if not number:
        (Path(folder) / "found.json").write_text(json.dumps(found))
    dist.barrier()
    os._exit(0)  # torch 2.13 may abort when it ends the groups of a mesh


def measured(kinds: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(rank, (folder, kinds), nprocs=RANKS, start_method="spawn")
        found = json.loads((Path(folder) / "found.json").read_text())
    seconds, profiles = ({kind: each[part] for kind, each in found.items()} for part in (0, 1))
    return {"machine": contest.machine(), "ranks": RANKS, "seconds": seconds, "profiles": profiles}


def table(found: dict[str, Any]) -> list[str]:
    lines = ["| model | key | a step | of nothing asked, median (range of the middle half) |", "|---|---|---|---|"]
    for kind, seconds in found["seconds"].items():
        for name, times in seconds.items():
            ratios = [time / base for time, base in zip(times, seconds[UNASKED], strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4) if name != UNASKED else (1.0, 1.0, 1.0)
            ratio = f"{middle:.2f} ({low:.2f} to {high:.2f})" if name != UNASKED else "1"
            lines.append(f"| {kind} | {name} | {1e3 * statistics.median(times):.1f} ms | {ratio} |")
    of = found["machine"]
    what = "6 gated MLPs" if COMPILED in found["seconds"] else "a transformer of 6 blocks"
    return [
        *lines,
        "",
        f"{found['ranks']} ranks on {of['cores']} cores of {of['cpu']}, one thread each, by gloo over the loopback, torch "
        f"{of['torch']}: {what}, {TURNS} turns of {STEPS} steps. "
        "Here messages take the cores from the products; a network of its "
        "own does not.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--docs", type=Path)
    parser.add_argument("--compiled", action="store_true", help="The keys that act on compiled code.")
    given = parser.parse_args()
    if given.docs:
        found = json.loads(given.docs.read_text())
        contest.into_docs("overlap-compiled" if COMPILED in found["seconds"] else "overlap", table(found))
        return
    found = measured([COMPILED] if given.compiled else ["DDP", "FSDP2"])
    print("\n".join(table(found)))
    if given.out:
        contest.keep(given.out, found)


if __name__ == "__main__":
    main()

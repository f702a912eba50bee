"""``replica_check``: whether the replicas of data-parallel models have the same bits on all ranks.

Every n steps the ranks gather two digests of each parameter: a collective, so all ranks have the same ``replica_check``.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from msctx import notices
from msctx.native import distributed, watched
from msctx.native.distributed import in_words
from msctx.observers import steps
from msctx.observers.slots import Slot

if TYPE_CHECKING:
    import torch

NO_MODEL = (
    "replica_check: no model to compare. Inside the block, give ctx.watch() what DistributedDataParallel(model) returned, not the "
    "model inside it"
)


class Check:
    """*settings*: after how many steps there is one."""

    def __init__(self, settings: int) -> None:
        self.settings = settings
        self._counting = ExitStack()
        self._told: set[str] = set()

    def begin(self) -> None:
        self._counting.enter_context(steps.counting(self._ended))

    def end(self) -> None:
        self._counting.close()

    def _ended(self, step: int) -> None:
        if (step + 1) % self.settings or distributed.rank() is None:
            return

        modules = {module: path for model in watched.models() for path, module in model.named_modules()}
        models = {module: path for module, path in modules.items() if isinstance(module, DistributedDataParallel)}
        if not models:
            notices.warn(NO_MODEL)
        for model, path in models.items():
            _compare(step, path, model, self._told)


def _compare(step: int, path: str, model: Any, told: set[str]) -> None:
    """The parameters: each rank has its own buffers until the next forward pass."""

    group = model.process_group
    mine = {
        name.removeprefix("module."): (*_digest(value).tolist(),) for name, value in model.named_parameters() if value.numel()
    }
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, mine, group=group)
    names = [name for name in mine if any(digests[name] != everyone[0][name] for digests in everyone)]
    if not names or (first := ".".join(filter(None, (path, names[0])))) in told:
        return
    told.add(first)
    holders: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank, digests in zip(dist.get_process_group_ranks(group), everyone, strict=True):
        holders[digests[names[0]]].append(rank)
    groups = sorted(holders.values(), key=lambda ranks: (-len(ranks), ranks))
    more = f", and {len(names) - 1} more parameter{'s' * (len(names) > 2)}" if len(names) > 1 else ""
    notices.warn(f"replica_check: after step {step}, {first} differs between " + " and ".join(map(in_words, groups)) + more)


def _digest(value: torch.Tensor) -> torch.Tensor:
    """The sum of the bits as integers, and their XOR: a single changed bit changes both."""

    data = value.detach() if value.is_cuda else value.detach().cpu()
    bits = data.contiguous().reshape(-1).view({1: torch.int8, 2: torch.int16}.get(data.itemsize, torch.int32))
    return torch.stack([bits.sum(dtype=torch.int64), torch.hash_tensor(bits, dim=0).view(torch.int64)]).cpu()


SLOT = Slot(Check)

"""``replica_check``: whether the replicas of data-parallel models have the same bits on all ranks.

Every n steps each rank puts a digest of each parameter into the store of the process group, and compares them with those of the rank
that came first. There is no collective: a rank that is late or gone holds nobody up.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from ctypes import c_int64, c_uint64, c_void_p
from functools import partial
from typing import TYPE_CHECKING, Any

from msctx import notices
from msctx.memory import watched
from msctx.native import core, distributed
from msctx.native.distributed import in_words
from msctx.observers import steps

if TYPE_CHECKING:
    import torch
    from torch import nn

SECONDS = 2.0
"""For all that is asked of the store at a check."""
KEPT = 2
"""Checks whose digests stay in the store, for ranks that are behind."""


class Check(steps.Stepper):
    """*setting*: after how many steps there is one; *done*: how many there have been."""

    def __init__(self, setting: int) -> None:
        super().__init__(setting)
        self.done = 0

    def _ended(self, step: int) -> None:
        if (step + 1) % self.setting or distributed.rank() is None:
            return
        self.done += 1
        from torch.distributed import get_process_group_ranks

        models = [found for model in watched.models() for found in _replicated(model)]
        if not models:
            notices.tell("replica_check", "models", NO_MODEL)
        for number, (path, model) in enumerate(models):
            exchange = partial(self._exchange, number, get_process_group_ranks(model.process_group), _digests(model, path))
            found = distributed.within(SECONDS, exchange)
            if found is None:
                notices.tell("replica_check", "store", "replica_check: the store of the process group gave no answer")
            elif found:
                self._tell(step, {r: json.loads(text) for r, text in found.items()})

    def _exchange(self, number: int, ranks: list[int], mine: dict[str, str]) -> dict[int, str]:
        store, rank = distributed.store(), distributed.rank() or 0
        of = f"msctx/replicas/{min(ranks)}/{number}"
        found = distributed.exchange(store, f"{of}/{self.done}", rank, ranks, json.dumps(mine))
        for key in (str(rank), *(["first"] if rank == min(ranks) else ())):
            store.delete_key(f"{of}/{self.done - KEPT}/{key}")
        return found

    def _tell(self, step: int, ranks: dict[int, dict[str, str]]) -> None:
        differing = [name for name in next(iter(ranks.values())) if len({one.get(name) for one in ranks.values()}) > 1]
        holders: defaultdict[str | None, list[int]] = defaultdict(list)
        for rank, one in sorted(ranks.items()):
            holders[one.get(differing[0])].append(rank)
        groups = sorted(holders.values(), key=len, reverse=True)
        more = f", and {len(differing) - 1} more parameters" if len(differing) > 1 else ""
        text = f"replica_check: after step {step}, {differing[0]} differs between " + " and ".join(map(in_words, groups)) + more
        notices.tell("replica_check", differing[0], text)


NO_MODEL = (
    "replica_check: there is nothing to compare: inside the block, give ctx.watch(model) the model that DistributedDataParallel"
    " has wrapped"
)


def _replicated(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """The data-parallel models in a watched one, with their paths."""
    from torch.nn.parallel import DistributedDataParallel

    for path, module in model.named_modules():
        if isinstance(module, DistributedDataParallel):
            yield path, module


def _digests(model: nn.Module, path: str) -> dict[str, str]:
    """Of the parameters: buffers belong to their rank until the next forward pass."""
    start = f"{path}." if path else ""
    return {start + name.removeprefix("module."): _digest(value) for name, value in model.named_parameters()}


def _digest(value: torch.Tensor) -> str:
    data = value.detach().cpu().contiguous()
    found = (c_uint64 * 2)()
    library = core.load()
    library.c.msctx_fingerprint(library.isa().encode(), c_void_p(data.data_ptr()), c_int64(data.nbytes), 1, found)
    return f"{value.dtype} {[*value.shape]} {found[0]:x}"


SLOT = steps.Slot(Check)

"""``replica_check``: whether the replicas of data-parallel models have the same bits on all ranks.

Every n steps each rank puts a digest of each parameter into the store of the process group, and compares them with those of the rank
that came first. There is no collective: a rank that is late or gone holds nobody up.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import defaultdict
from collections.abc import Iterator
from ctypes import c_int64, c_uint64, c_void_p
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from msctx import notices
from msctx.memory import watched
from msctx.native import core, distributed
from msctx.native.distributed import Alike, in_words
from msctx.observers import steps

if TYPE_CHECKING:
    import torch
    from torch import nn

SECONDS = 2.0
"""For all that is asked of the store at a check."""
KEPT = 2
"""Checks whose digests stay in the store, for ranks that are behind."""


_keys: WeakKeyDictionary[Any, tuple[str, Iterator[int]]] = WeakKeyDictionary()
"""Data-parallel model → where its digests are in the store, and the numbers of its checks: they go on from block to block."""
_numbers: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)
"""Ranks → the numbers of the models that they have in common: they come to them in one order."""


class Check(steps.Stepper):
    """*setting*: after how many steps there is one."""

    def _ended(self, step: int) -> None:
        if (step + 1) % self.setting or distributed.rank() is None:
            return
        if distributed.is_silent("replica_check"):
            notices.warn("replica_check", "store", NO_ANSWER)
            return
        from torch.distributed import get_process_group_ranks

        models = {module: path for model in watched.models() for path, module in _replicated(model)}
        if not models:
            notices.warn("replica_check", "models", NO_MODEL)
        for model, path in models.items():
            exchange = partial(_exchange, *_place(model), get_process_group_ranks(model.process_group), _digests(model))
            found = distributed.in_step("replica_check", SECONDS, exchange)
            if found is None:
                notices.warn("replica_check", "store", NO_ANSWER)
                return
            _warn(step, path, found)


def _place(model: Any) -> tuple[str, int]:
    """Where this check of *model* is in the store: no other check, of this model or another one, was ever there."""
    if model not in _keys:
        from torch.distributed import get_process_group_ranks

        ranks = hashlib.sha256(json.dumps(get_process_group_ranks(model.process_group)).encode()).hexdigest()[:16]
        of = distributed.of_start("msctx/replicas")
        _keys[model] = f"{of}/{ranks}/{next(_numbers[ranks])}", itertools.count(1)
    of, numbers = _keys[model]
    return of, next(numbers)


def _exchange(of: str, number: int, ranks: list[int], mine: dict[str, str]) -> list[Alike]:
    store, rank, text = distributed.store(), distributed.rank() or 0, json.dumps(mine)
    first = distributed.post(store, f"{of}/{number}", rank, text, hashlib.sha256(text.encode()).hexdigest()[:12])
    for key in (str(rank), *(["first", "all"] if rank == min(ranks) else ())):
        store.delete_key(f"{of}/{number - KEPT}/{key}")
    return distributed.collect(store, f"{of}/{number}", rank, text, first[0]) if first else []


def _warn(step: int, path: str, found: list[Alike]) -> None:
    all_ = [(one.ranks, json.loads(one.text)) for one in found if one.text]
    names = dict.fromkeys(name for _, digests in all_ for name in digests)
    differing = [name for name in names if len({digests.get(name) for _, digests in all_}) > 1]
    if not differing:
        return
    holders: defaultdict[str | None, list[int]] = defaultdict(list)
    for ranks, digests in all_:
        holders[digests.get(differing[0])] += ranks
    groups = sorted(map(sorted, holders.values()), key=lambda ranks: (-len(ranks), ranks))
    more = f", and {rest} more parameter{'s' * (rest > 1)}" if (rest := len(differing) - 1) else ""
    name = f"{path}.{differing[0]}" if path else differing[0]
    text = f"replica_check: after step {step}, {name} differs between " + " and ".join(map(in_words, groups)) + more
    if unread := sorted(rank for one in found if not one.text for rank in one.ranks):
        text += f"; {in_words(unread)}: something else again"
    notices.warn("replica_check", name, text)


NO_ANSWER = "replica_check: the store of the process group gave no answer: from here on nothing is compared"
NO_MODEL = (
    "replica_check: there is nothing to compare: inside the block, give ctx.watch() what DistributedDataParallel(model) returned, not"
    " the model that is inside it"
)


def _replicated(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """The data-parallel models in a watched one, with their paths."""
    from torch.nn.parallel import DistributedDataParallel

    for path, module in model.named_modules():
        if isinstance(module, DistributedDataParallel):
            yield path, module


def _digests(model: nn.Module) -> dict[str, str]:
    """Of the parameters: buffers belong to their rank until the next forward pass."""
    return {name.removeprefix("module."): _digest(value) for name, value in model.named_parameters()}


def _digest(value: torch.Tensor) -> str:
    data = value.detach().cpu().contiguous()
    found = (c_uint64 * 2)()
    library = core.load()
    library.c.msctx_fingerprint(library.isa().encode(), c_void_p(data.data_ptr()), c_int64(data.nbytes), 1, found)
    return f"{value.dtype} {[*value.shape]} {found[0]:x}"


SLOT = steps.Slot(Check)

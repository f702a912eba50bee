"""Ranks that are to compute alike: the first context of each that decides numerics is compared with that of the others.

There is no collective, and nobody waits for anybody: each rank puts what will be in force into the store by which the ranks found
each other (torchrun's, or that of the process group) and finds there what the first one put. A rank that differs reports a table.
"""

from __future__ import annotations

import json
import platform
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msctx._version import __version__
from msctx.errors import StrictError
from msctx.native import distributed, environment_key
from msctx.native.distributed import in_words
from msctx.notices import tell
from msctx.options.conv_policy import plain
from msctx.plan import Plan

SECONDS = 2.0
"""For all that is asked of the store."""
NUMERICS = (
    *(
        "torch.autocast",
        "torch.cpu_capability",
        "torch.cuda.matmul",
        "torch.cudnn",
        "torch.default_dtype",
        "torch.deterministic",
    ),
    *("torch.float32_matmul_precision", "torch.flush_denormal", "torch.fp32_precision", "torch.mkl", "torch.num_threads"),
    *(
        "torch.inductor.batch_invariant",
        "torch.inductor.deterministic",
        "torch.inductor.emulate",
        "torch.inductor.fallback_random",
    ),
    *("torch.sdp", "native.convolution", "native.precision", "session.low_precision", "graph.compilation"),
    *("models.gradients", "models.gathered_ahead", "torch.inductor.bucket_", "torch.inductor.reorder_for_compute_comm"),
    *("env.CUBLAS", "env.HCCL", "env.NCCL_ALGO", "env.TE_PARALLEL_COMPILER"),
)
"""How the names of the switches begin that decide what ranks compute and in which order they communicate.

Seeds and memory may well differ.
"""

_compared: set[int] = set()
"""The process groups in which this process has taken part; 0: the ranks of torchrun's agent."""


def check(plan: Plan) -> None:
    """Compare what *plan* will put in force with the other ranks', once.

    Raises:
        StrictError: they differ, and the plan is strict or has ``fallback="error"``. Nothing was changed.
    """
    group = distributed.run()
    if (not group and not distributed.has_agent()) or not _compared.isdisjoint((0, group)):
        return
    if not any(name.startswith(NUMERICS) for name in plan.assignments):
        return
    _compared.add(group)
    mine = json.dumps(_in_force(plan), sort_keys=True)
    ranks = distributed.within(SECONDS, lambda: _exchange(group, mine))
    if ranks is None:
        tell(
            "ranks",
            "store",
            f"whether all ranks have the same options is unknown: their store gave no answer for {SECONDS:g} s",
        )
    elif ranks:
        lines = [*_table({rank: json.loads(one) for rank, one in ranks.items()})]
        if late := [rank for rank in range(_size(group)) if rank not in ranks]:
            lines.append(f"  {in_words(late)}: not there yet")
        text = "\n".join(["ranks differ in what they compute:", *lines])
        if plan.strict or plan.without_fallback:
            raise StrictError(f"{text}\nNothing was changed: give all ranks the same options, versions and variables.")
        tell("ranks", text, text)


def _in_force(plan: Plan) -> dict[str, tuple[Any, str]]:
    """Switch, version or property of the machine → its value inside the plan, and where it is from."""
    import torch

    from msctx.switches import read_all

    found: dict[str, tuple[Any, str]] = {k: (v, "as found") for k, v in read_all().items() if k.startswith(NUMERICS)}
    for name, value in plan.assignments.items():
        if name.startswith(NUMERICS):
            rows = (row for row in plan.rows if name in row.assignments)
            found[name] = plain(value), ", ".join(f"{row.spelling}={row.value} from {row.origin}" for row in rows)
    facts = {
        "msctx": __version__,
        "torch": torch.__version__,
        "CUDA": torch.version.cuda,
        "cuDNN": torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None,
        "processor": environment_key.cpu()[0],
        "instruction sets": environment_key.cpu()[1],
    }
    return found | {name: (value, platform.node()) for name, value in facts.items()}


def _size(group: int) -> int:
    return distributed.size() if group else distributed.number("WORLD_SIZE")


def _exchange(group: int, mine: str) -> dict[int, str]:
    store = distributed.store() if group else distributed.agents_store("ranks")
    rank = (distributed.rank() or 0) if group else distributed.number("RANK")
    of = f"msctx/agreement/{distributed.number('TORCHELASTIC_RESTART_COUNT')}"
    return distributed.exchange(store, of, rank, range(_size(group)), mine)


def _table(ranks: Mapping[int, Mapping[str, Sequence[Any]]]) -> Iterator[str]:
    """A line for each switch in which they differ: its values, with the ranks that have each, and where it is from."""
    for name in sorted({name for one in ranks.values() for name in one}):
        holders: defaultdict[str, list[int]] = defaultdict(list)
        for rank, one in sorted(ranks.items()):
            value, origin = one.get(name, (None, "not there"))
            holders[f"{value} ({origin})"].append(rank)
        if len({text.partition(" (")[0] for text in holders}) > 1:
            yield f"  {name}: " + "; ".join(f"{in_words(found)}: {text}" for text, found in holders.items())

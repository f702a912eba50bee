"""Ranks that are to compute alike: the first context of each that decides numerics is compared with that of the others.

There is no collective, and nobody waits for anybody: each rank puts what will be in force into the store by which the ranks found
each other (torchrun's, or that of the process group) and finds there what the first one put. A rank that differs reports a table.

The very first context of a rank may decide nothing: because it is for a rank alone, or because its options were lost there. So it
is compared with what another rank enters at the same place of the program, and no other. A rank that enters none is not missed: a
program may well evaluate under a context on one rank alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
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

_begun: set[int] = set()
_compared: set[int] = set()
"""The process groups in which this process has entered a context, and one that decides numerics; 0: the ranks of torchrun's agent."""


def check(plan: Plan) -> None:
    """Compare what *plan* will put in force with the other ranks': of the first context, and of the first that decides numerics.

    Raises:
        StrictError: they differ, and the plan is strict or has ``fallback="error"``. Nothing was changed.
    """
    if 0 in _compared:
        return
    group = distributed.run()
    if group in _compared or (not group and not distributed.has_agent()):
        return
    decides = any(name.startswith(NUMERICS) for name in plan.assignments)
    if not decides and not _begun.isdisjoint((0, group)):
        return
    _begun.add(group)
    if decides:
        _compared.add(group)
    mine, place = json.dumps(_in_force(plan), sort_keys=True), _place()
    ranks = distributed.within(SECONDS, lambda: _exchange(group, mine, place, decides))
    if ranks is None:
        _compared.add(group)  # who has no answer now does not wait again
        why = f"the store by which they found each other is lost, or gave no answer within {SECONDS:g} s"
        tell("ranks", "store", f"whether all ranks have the same options is unknown: {why}")
    elif lines := [*_table({rank: json.loads(one) for rank, one in ranks.items() if one})]:
        if late := [rank for rank, one in ranks.items() if not one]:
            lines.append(f"  {in_words(late)}: not there yet")
        text = "\n".join(["ranks differ in what they compute:", *lines])
        if plan.strict or plan.without_fallback:
            _begun.discard(group)  # who tries again is compared again
            _compared.discard(group)
            raise StrictError(f"{text}\nNothing was changed: give all ranks the same options, versions and variables.")
        tell("ranks", text, text)


def _place() -> str:
    """Where in the program this context is entered, through all that has called it; it is the same on ranks that run the same."""
    frame: FrameType | None = sys._getframe(1)
    lines = []
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_PACKAGE):
            lines.append(f"{os.path.basename(code.co_filename)}:{frame.f_lineno}")
        frame = frame.f_back
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")


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


def _exchange(group: int, mine: str, place: str, decides: bool) -> dict[int, str]:
    store = distributed.store() if group else distributed.agents_store("ranks")
    rank = (distributed.rank() or 0) if group else distributed.number("RANK")
    of = f"msctx/agreement/{distributed.number('TORCHELASTIC_RESTART_COUNT')}"
    return ask(store, of, rank, _size(group), mine, place, decides=decides)


def ask(store: Any, of: str, rank: int, size: int, mine: str, place: str, *, decides: bool) -> dict[int, str]:
    """What ranks have put into the store until now, ``""`` for those of all that have not; empty: there is nothing to compare.

    A rank that decides numerics is compared with the others that do, wherever they are in the program; and with the first that came
    to the same place, where one of the two decides nothing: it has lost its options. Nobody waits.
    """
    found = distributed.exchange(store, of, rank, range(size), mine) if decides else {}
    late = {other: "" for other in range(size) if found and other not in found}
    first = distributed.first_of(store, f"{of}/at/{place}", json.dumps([decides, rank, mine]))
    its, other, text = json.loads(first) if first else (decides, rank, mine)
    return late | found | ({} if its == decides else {other: text, rank: mine})


def _table(ranks: Mapping[int, Mapping[str, Sequence[Any]]]) -> Iterator[str]:
    """A line for each switch in which they differ: its values, with the ranks that have each, and where it is from."""
    for name in sorted({name for one in ranks.values() for name in one}):
        holders: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        for rank, one in sorted(ranks.items()):
            value, origin = one.get(name, (None, "not there"))
            holders[str(value), origin].append(rank)
        if len({value for value, _ in holders}) > 1:
            yield f"  {name}: " + "; ".join(f"{in_words(found)}: {value} ({at})" for (value, at), found in holders.items())

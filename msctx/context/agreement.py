"""Ranks that are to compute alike: the first context of each that decides numerics is compared with that of the others.

There is no collective, and nobody waits for anybody: each rank puts what will be in force into the store by which the ranks found
each other (torchrun's, or that of the process group) and finds there what the first one put. A rank that differs reports a table.

The very first context of a rank may decide nothing: because it is for a rank alone, or because its options were lost there. So it
is compared with what another rank enters at the same place of the program, and no other. A rank that enters none is not missed: a
program may well evaluate under a context on one rank alone.

A rank of `msctx run --nproc` also compares its plan with the one that the launching process has made of the same options.
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
from msctx.native import distributed, environment_key, tuning, tuning_file
from msctx.native.distributed import Alike, in_words
from msctx.notices import warn
from msctx.options import carried
from msctx.options.conv_policy import plain
from msctx.plan import FAILING, Plan

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

HANDED = "plan"
"""Where MSCTX_PLAN has what :func:`handed` returns."""
LAUNCHING = -1
"""In place of a rank: the launching process."""
AGENT, LAUNCHER = 0, -1
"""In place of a process group's number: the ranks that torchrun's agent has started, or `msctx run` where each start of them has a
store of its own. The first are compared once; the second have a group with another store, in which they are compared again."""
_begun: set[int] = set()
_compared: set[int] = set()
"""The process groups in which this process has entered a context, and one that decides numerics."""


def check(plan: Plan) -> None:
    """Compare what *plan* will put in force with the other ranks': of the first context, and of the first that decides numerics.

    Raises:
        StrictError: they differ, and the plan is strict or has ``fallback="error"``. Nothing was changed.
    """
    if AGENT in _compared:
        return
    group = distributed.run() or (LAUNCHER if distributed.has_launchers_store() and not distributed.has_agent() else AGENT)
    if group in _compared or (group == AGENT and not distributed.has_agent()):
        return
    if group <= 0 and distributed.is_worker_of_rank():
        return
    decides = any(name.startswith(NUMERICS) for name in plan.assignments)
    if not decides and not _begun.isdisjoint((AGENT, group)):
        return
    _begun.add(group)
    if decides:
        _compared.add(group)
    in_force, place = _in_force(plan), _place()
    rank = (distributed.rank() or 0) if group > 0 else distributed.number("RANK")
    of = f"msctx/agreement/{distributed.restarts()}"

    def asked() -> tuple[Any, str, list[Alike], list[Alike]]:
        store = _store(group)
        found = in_force | _tuning(plan, store, of, has_group=group > 0)
        mine = json.dumps(found, sort_keys=True)
        return store, mine, *ask(store, of, rank, mine, _same(found), place, decides=decides)

    answer = distributed.within(SECONDS, asked)
    if answer is None:
        _compared.add(group)  # who has no answer now does not wait again
        why = f"the store by which they found each other is lost, or gave no answer within {SECONDS:g} s"
        warn("ranks", "store", f"whether all ranks have the same options is unknown: {why}")
        return
    store, mine, first, lost = answer  # that they differ is known, even if the store does not tell any more who has what
    all_ = (distributed.within(SECONDS, lambda: distributed.collect(store, of, rank, mine, first[0])) if first else None) or []
    found = [*(all_ or [*first, Alike(rank, mine, [rank])]), *lost]
    if lines := [*_table([one for one in found if one.text])]:
        lines += [f"  {in_words(one.ranks)}: something else again" for one in found if not one.text]
        if all_ and (late := sorted({*range(_size(group))}.difference(*(one.ranks for one in found)))):
            lines.append(f"  {in_words(late)}: no context that decides numerics yet")
        if _is_error(plan):
            _begun.discard(group)  # who tries again is compared again
            _compared.discard(group)
        _report(plan, ["ranks differ in what they compute:", *lines])


def handed(plan: Plan) -> str:
    """Of the plan of a launching process: what its ranks compare theirs with."""
    return distributed.packed(json.dumps([plan.digest, _rows(plan)]))


def check_launched(plan: Plan) -> None:
    """Compare *plan*, which this rank has made of the options that it was handed, with that of the launching process.

    A rank makes its own: it has its own device, and its own environment where the launching process is on another node.

    Raises:
        StrictError: as :func:`check` does.
    """
    if (launched := distributed.unpacked(carried.read(os.environ).get(HANDED, "").encode())) is None:
        return
    digest, rows = json.loads(launched)
    if digest != plan.digest:
        rank = distributed.number("RANK")
        lines = _table([Alike(LAUNCHING, json.dumps(rows), [LAUNCHING]), Alike(rank, json.dumps(_rows(plan)), [rank])])
        _report(plan, [f"the same options give another plan on rank {rank} than where it was launched:", *lines])


def _is_error(plan: Plan) -> bool:
    return plan.strict or bool(plan.without_fallback)


def _report(plan: Plan, lines: Sequence[str]) -> None:
    text = "\n".join(lines)
    if _is_error(plan):
        raise StrictError(f"{text}\nNothing was changed: give all ranks the same options, versions and variables.")
    warn("ranks", text, text)


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
            found[name] = plain(value), _set_by(plan, name)
    facts = {
        "msctx": __version__,
        "torch": torch.__version__,
        "CUDA": torch.version.cuda,
        "cuDNN": torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None,
        "processor": environment_key.cpu()[0],
        "instruction sets": environment_key.cpu()[1],
    }
    return found | {name: (value, platform.node()) for name, value in facts.items()}


def _set_by(plan: Plan, switch: str) -> str:
    return ", ".join(f"{row.spelling}={row.value} from {row.origin}" for row in plan.rows if switch in row.assignments)


def _rows(plan: Plan) -> dict[str, tuple[str, str]]:
    """All of which :attr:`Plan.digest` is made: each option's value and what comes of it, and each switch's."""
    found: dict[str, tuple[str, str]] = {}
    for row in plan.rows:
        value = f"{plain(row.value)!r}, {row.status}" + f", overridden by {row.winner}" * bool(row.winner)
        origin = row.origin + f": {row.reason}" * (row.status in FAILING)
        before = found.get(name := f"{row.spelling} on {row.device}")
        found[name] = (f"{before[0]}; {value}", f"{before[1]}; {origin}") if before else (value, origin)
    return found | {switch: (repr(plain(value)), _set_by(plan, switch)) for switch, value in plan.assignments.items()}


def _tuning(plan: Plan, store: Any, of: str, *, has_group: bool) -> dict[str, tuple[Any, str]]:
    """Where calls run the fastest algorithm by measurement: what measurements depend on here, and which of them this rank has.

    In a process group all choose by the first's (:func:`msctx.native.distributed.agreed`), and only that counts on what they depend.
    """
    policies = {place: plan.assignments.get(f"native.convolution.{place}") for place in ("cpu", "cuda")}
    measuring = {place: policy for place, policy in policies.items() if policy is not None and policy.measures}
    found: dict[str, tuple[Any, str]] = {}
    for place, policy in measuring.items():
        found[f"tuning on {place}"] = tuning.environment(place), platform.node()
        if not has_group:
            # what ranks measure themselves may differ
            began = distributed.first_of(store, f"{of}/began", tuning.moment()) or ""
            path = tuning_file.location(policy.tuning_file)
            found[f"tuning file on {place}"] = tuning.known_before(began, path, place), f"{path} on {platform.node()}"
    return found


def _same(in_force: Mapping[str, tuple[Any, str]]) -> str:
    """Equal on ranks that have the same values, from wherever they are."""
    return hashlib.sha256(json.dumps({k: value for k, (value, _) in in_force.items()}, sort_keys=True).encode()).hexdigest()[
        :12
    ]


def _store(group: int) -> Any:
    if group == LAUNCHER:
        return distributed.launchers_store()
    return distributed.agents_store("ranks") if group == AGENT else distributed.store()


def _size(group: int) -> int:
    return distributed.size() if group > 0 else distributed.number("WORLD_SIZE")


def ask(store: Any, of: str, rank: int, mine: str, same: str, place: str, *, decides: bool) -> tuple[list[Alike], list[Alike]]:
    """The first rank that has something else; and the first at this place of the program, where one of the two decides nothing.

    A rank that decides numerics is compared with the others that do, wherever they are in the program. One that decides nothing has
    lost its options, if others decide something at the same place. Nobody waits.
    """
    first = distributed.post(store, of, rank, mine, same) if decides else []
    text = distributed.first_of(store, f"{of}/at/{place}", json.dumps([decides, rank, mine]))
    its, other, theirs = json.loads(text) if text else (decides, rank, mine)
    return first, [] if its == decides else [Alike(other, theirs, [other])]


def _table(found: Sequence[Alike]) -> Iterator[str]:
    """A line for each switch in which they differ: its values, with the ranks that have each, and where one of them has it from."""
    all_ = [(one, json.loads(one.text)) for one in found]
    for name in sorted({name for _, in_force in all_ for name in in_force}):
        values: dict[int, str] = {}
        origins: dict[str, tuple[int, str]] = {}
        for one, in_force in all_:
            value, origin = in_force.get(name, (None, "not there"))
            values |= dict.fromkeys(one.ranks, str(value))
            origins.setdefault(str(value), (one.rank, origin))
        holders: defaultdict[str, list[int]] = defaultdict(list)
        for rank, text in sorted(values.items()):
            holders[text].append(rank)
        if len(holders) > 1:
            yield f"  {name}: " + "; ".join(_cell(text, ranks, *origins[text]) for text, ranks in holders.items())


def _cell(value: str, ranks: list[int], rank: int, origin: str) -> str:
    who = "launching process" if ranks == [LAUNCHING] else in_words(ranks)
    return f"{who}: {value} ({f'rank {rank}: ' * (len(ranks) > 1)}{origin})"

"""The operators of a step in two runs, side by side: where the runs differ first.

They are matched by direction, module, operator and occurrence, so it does not matter how threads take turns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msctx.verify.rows import GRADIENT, PARAMETER, Ran, Tensor

OPERATOR, RANDOM, INPUT, PARTED = "operator", "random", "input", "parted"
"""What the first difference is: an operator's own; random numbers; of what came in from outside; that one run goes another way. Or it
is of a parameter or a gradient, where no operator made it."""
STATE = (PARAMETER, GRADIENT)
OVERWRITING = {"aten::copy_", "aten::fill_", "aten::zero_"}
"""What they write to may hold nothing yet."""


class Difference(NamedTuple):
    kind: str
    rows: tuple[Ran | None, Ran | None]
    inputs: Sequence[int] = ()
    """The numbers of the tensors that differ."""
    outputs: Sequence[int] = ()


def first_difference(one: Sequence[Ran], other: Sequence[Ran]) -> Difference | None:
    """In the order of the first run."""
    groups = _groups(one), _groups(other)
    found: list[tuple[float, Difference]] = []
    partner: dict[float, float] = {}
    alone: list[tuple[Ran | None, Ran | None]] = []
    for key in dict.fromkeys([*groups[0], *groups[1]]):
        mine, theirs = groups[0].get(key, []), groups[1].get(key, [])
        if len({row.thread for row in (*mine, *theirs)}) > 2:  # of more than one thread in a run
            theirs = _by_inputs(mine, theirs)
        for a, b in zip(mine, theirs, strict=False):
            if a.mark() != b.mark():
                difference = _classified(a, b)
                if len(mine) != len(theirs) and difference.kind == INPUT:
                    difference = Difference(PARTED, (a, b))
                found.append((a.order, difference))
                break
            partner[b.order] = a.order
        else:
            common = min(len(mine), len(theirs))
            if len(mine) > common:
                alone.append((mine[common], None))
            elif len(theirs) > common:
                alone.append((None, theirs[common]))
    for a_alone, b_alone in alone:
        if a_alone is not None:
            place = a_alone.order
        else:
            assert b_alone is not None
            before = [row.order for row in other if row.order < b_alone.order and row.order in partner]
            place = partner[max(before)] + 0.5 if before else -1.0
        found.append((place, Difference(PARTED, (a_alone, b_alone))))
    return min(found, key=lambda each: each[0])[1] if found else None


def _groups(rows: Iterable[Ran]) -> dict[tuple[str, str, str, str], list[Ran]]:
    found = defaultdict(list)
    for row in rows:
        found[row.key].append(row)
    return found


def _by_inputs(mine: Sequence[Ran], theirs: Sequence[Ran]) -> list[Ran]:
    """Those of the other run, each in the place of one with the same inputs; the rest in the places that are left."""
    waiting = defaultdict(list)
    for row in theirs:
        waiting[repr(row.inputs)].append(row)
    places: list[Ran | None] = [queue.pop(0) if (queue := waiting[repr(row.inputs)]) else None for row in mine]
    rest = sorted((row for queue in waiting.values() for row in queue), key=lambda row: row.order)
    filled = [place or (rest.pop(0) if rest else None) for place in places]
    return [row for row in (*filled, *rest) if row is not None]


def _classified(a: Ran, b: Ran) -> Difference:
    ignored = "self" if a.operator in OVERWRITING or is_seeded(a) else None
    inputs = _differing(a.inputs, b.inputs, ignored)
    kind = a.operator if a.operator in STATE else INPUT if inputs else RANDOM if is_seeded(a) else OPERATOR
    return Difference(kind, (a, b), inputs, _differing(a.outputs, b.outputs))


def _differing(ours: Sequence[Tensor], theirs: Sequence[Tensor], ignored: str | None = None) -> list[int]:
    both = range(max(len(ours), len(theirs)))
    return [
        i
        for i in both
        if ours[i : i + 1] != theirs[i : i + 1] and not (ignored and ours[i : i + 1] and ours[i].argument == ignored)
    ]


def is_seeded(row: Ran) -> bool:
    """Whether it draws random numbers from one of torch's generators."""
    import torch

    space, _, name = row.operator.partition("::")
    packet = getattr(getattr(torch.ops, space, None), name, None) if name else None
    overload = getattr(packet, row.overload or "default", None)
    return torch.Tag.nondeterministic_seeded in getattr(overload, "tags", ())

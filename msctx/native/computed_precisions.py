"""In which dtype operators computed under precision policies: precisions()."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from msctx.native import counter_lifetimes, precision_policies
from msctx.options.precision_policy import LEAVE, precision_of
from msctx.tables import Row, Rows

Counts = dict[int, Any]
"""Number of a policy → for each operator what has been counted, an array: see precision_policies.COUNTED."""
numbers: set[int] = set()
"""Of the policies that are in force in any thread, or around a checkpoint there."""


@dataclass(frozen=True, slots=True)
class Computed(Row):
    """How the calls of one operator were computed.

    Attributes:
        operator: PyTorch's name, all its overloads together.
        module: the path of the module whose name a rule has, else ``""``.
        dtype: what it computed in: that of its first floating input after casts; ``"traced"``: calls that were traced for compiled
            code, which runs without being counted.
        calls: how often.
        casts: how many casts were inserted for all calls of this operator, of whatever dtype; in its first row.
        computed_again: how many of its calls had no kernel for 16 bits and were repeated in float32.
        backward: whether these calls computed gradients, which have the dtypes of their forward pass.
        why: the option that decided; ``"torch.autocast"``: one inside the block, and *dtype* is that of the result; ``""``: no
            policy applies to it.
    """

    operator: str
    module: str
    dtype: str
    calls: int
    casts: int
    computed_again: int
    why: str
    backward: bool = False


class Precisions(Rows[Computed]):
    """Rows of what computed in which dtype, by operator. Prints as a table."""

    EMPTY = "no operator has run under a precision policy"
    ROW = Computed

    def _table(self) -> tuple[tuple[str, ...], Iterator[list[str]]]:
        again = ("computed_again",) if any(row.computed_again for row in self) else ()
        told = (name for name in ("module", "backward") if any(getattr(row, name) for row in self))
        columns = ("operator", *told, "dtype", "calls", "casts", *again, "why")
        return columns, ([str(getattr(row, name)) for name in columns] for row in self)


class Tally:
    """What was counted while a context was open, by whichever of its scopes."""

    def __init__(self, context: Any) -> None:
        self._since: Counts = {}  # where the policies stood that were in force since
        self._made: Counts = {}

    def begin(self) -> None:
        self._since |= precision_policies.counts(number for number in [*numbers] if number not in self._since)

    def end(self) -> list[str]:
        self._made, self._since = self._sum(), {}
        return []

    def _sum(self) -> Counts:
        made = {number: found - self._since[number] for number, found in precision_policies.counts(self._since).items()}
        return self._made | {number: self._made.get(number, 0) + found for number, found in made.items()}

    def precisions(self) -> Precisions:
        return Precisions(_rows(self._sum()))


counter_lifetimes.SOURCES[Tally] = numbers


def of_process() -> Precisions:
    """Everything that was computed under policies in this process."""
    return Precisions(_rows(precision_policies.counts([*precision_policies.TEXTS])))


def _rows(made: Counts) -> Iterator[Computed]:
    for number, found in made.items():
        text, module = precision_policies.TEXTS[number]
        policy = precision_of(text)
        rules = {**policy.rules, **policy.modules.get(module, {})}
        for place in dict.fromkeys(found.nonzero()[0]):  # the rows that hold a count
            counted = dict(zip(precision_policies.COUNTED, (int(n) for n in found[place]), strict=True))
            name = precision_policies.OPS[place]
            casts, again = counted.pop("casts"), counted.pop("again")
            for what, calls in counted.items():
                *kind, dtype = what.rsplit(" ", 1)
                if calls and kind:
                    is_backward = what.startswith(precision_policies.BACKWARD)
                    yield Computed(name, module, dtype, calls, 0, 0, "" if is_backward else "torch.autocast", is_backward)
                elif calls:
                    why = rules.get(name, LEAVE).why or ("enable_reduce_precision" if again else "")
                    yield Computed(name, module, dtype, calls, casts, again, why)
                    casts = again = 0

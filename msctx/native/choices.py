"""What ran, and why: the rows of ``choices()``."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

from msctx.native import core
from msctx.options.conv_rules import rules_of

Shape = tuple[int, ...]
Counts = Sequence[Sequence[int]]
Made = dict[tuple[int, int], int]
"""(number of the choice, place in :data:`core.COUNTED`) → how often."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One convolution, as PyTorch was asked for it. What holds along each spatial axis is a tuple of that many numbers.

    ``layout`` is ``"channels_first"`` or ``"channels_last"``; for operators that no algorithm of msctx replaces, a word for the form
    of their tensors, and what is not known of them is empty.
    """

    input: Shape
    weight: Shape
    stride: Shape
    padding: Shape
    dilation: Shape
    output_padding: Shape
    groups: int
    transposed: bool
    dtype: str
    layout: str

    def __str__(self) -> str:
        def text(shape: Shape) -> str:
            return "x".join(map(str, shape))

        def along(values: Shape) -> str:
            return str(values[0]) if len(set(values)) == 1 else text(values)

        words = [f"{text(self.input)} * {text(self.weight)}", self.dtype]
        words += ["transposed"] if self.transposed else []
        words += [f"stride {along(self.stride)}"] if set(self.stride) - {1} else []
        words += [f"padding {along(self.padding)}"] if set(self.padding) - {0} else []
        words += [f"dilation {along(self.dilation)}"] if set(self.dilation) - {1} else []
        words += [f"output_padding {along(self.output_padding)}"] if set(self.output_padding) - {0} else []
        words += [f"groups {self.groups}"] if self.groups != 1 else []
        return ", ".join([*words, self.layout])


@dataclass(frozen=True, slots=True)
class Choice:
    """How one problem was computed.

    Attributes:
        direction: ``"fprop"``, ``"dgrad"`` or ``"wgrad"``.
        problem: its shapes and parameters.
        module: the path of its module, where ``ctx.watch(model)`` knows it, else ``""``.
        asked: the algorithm asked for, in MindSpore's words; ``"thread_invariant"`` where only that was.
        ran: the algorithm that ran, ``"torch"`` for torch's own path.
        provider: ``"msctx"``, ``"torch"`` or ``"cudnn"``.
        math: the arithmetic of the products: ``"strict"`` (FMA in float32, or float64's own), ``"fp32-grade"`` (products of parts
            of the values on a matrix unit, no less exact than float32's sums), ``"tf32"``, ``"float64"``, ``"torch"``.
        error: the documented bound of the algorithm's error, in units of the largest result; 0.0 where none is stated (torch, cuDNN).
        workspace: bytes beside the tensors.
        calls: how often it ran.
        weights_kept: how often what the algorithm makes of a weight was there from an earlier call.
        weights_prepared: how often it had to be made, since it was new or the weight had changed.
        reasons: why those ahead of it did not run, and what else is to be known.
    """

    direction: str
    problem: Problem
    module: str
    asked: str
    ran: str
    provider: str
    math: str
    error: float
    workspace: int
    calls: int
    weights_kept: int
    weights_prepared: int
    reasons: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Choices(Sequence[Choice]):
    """Rows of what ran, in the order in which the problems were first met. Prints as a table."""

    def __init__(self, rows: Iterable[Choice] = ()) -> None:
        self._rows = tuple(rows)

    def __getitem__(self, index: Any) -> Any:
        return Choices(self._rows[index]) if isinstance(index, slice) else self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Choices) and self._rows == other._rows

    def __hash__(self) -> int:
        return hash(self._rows)

    def as_dicts(self) -> list[dict[str, Any]]:
        return [row.as_dict() for row in self._rows]

    def __str__(self) -> str:
        from msctx.native import table

        return table.plain(table.table(self)) if self._rows else "no convolution has run under a policy"

    __repr__ = __str__


def counts() -> Counts:
    """What has been counted of each choice until now, for :func:`between`."""
    library = core.loaded()
    return library.counts() if library is not None else ()


def between(before: Counts, after: Counts | None = None) -> Made:
    """What was counted since, or between two counts."""
    import numpy as np

    def table(found: Counts) -> np.ndarray[Any, Any]:
        return np.array(found, np.int64).reshape(-1, len(core.COUNTED))

    made = table(counts() if after is None else after)
    made[: len(before)] -= table(before)
    return {(int(i), int(j)): int(made[i, j]) for i, j in np.argwhere(made > 0)}


def rows(made: Made | None = None) -> Choices:
    """The choices of :func:`between`; without it all of the process."""
    library = core.loaded()
    if library is None:
        return Choices()
    made = between(()) if made is None else made
    wanted = sorted(i for i, counted in made if counted == 0)
    found = library.choices(wanted)
    columns = range(len(core.COUNTED))
    return Choices(_choice(entry, *(made.get((i, j), 0) for j in columns)) for entry, i in zip(found, wanted, strict=True))


class Tally:
    """The calls made while a context was open, by whichever of its scopes: a call inside several of them counts once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0
        self._since: Counts = ()  # the counts when the first of the open scopes was opened
        self._made: Counter[tuple[int, int]] = Counter()  # until the last of them closed

    def __deepcopy__(self, memo: object) -> Tally:
        return Tally()

    def __reduce__(self) -> tuple[type[Tally], tuple[()]]:
        return Tally, ()  # what was counted in one process says nothing in another

    def open(self) -> Counts:
        """A scope opens; returns the counts until now."""
        now = counts()
        with self._lock:
            if not self._open:
                self._since = now
            self._open += 1
        return now

    def close(self, since: Counts) -> Made:
        """A scope closes that opened at the counts *since*; returns what was counted in it."""
        now = counts()
        with self._lock:
            self._open -= 1
            if not self._open:
                self._made.update(between(self._since, now))
        return between(since, now)

    def choices(self) -> Choices:
        with self._lock:
            made = self._made + Counter(between(self._since) if self._open else {})
        return rows(dict(made))


def unmatched(rules: Iterable[str], made: Made) -> list[str]:
    """The conditions of *rules* (canonical texts) that none of the choices *made* fulfils."""
    found: list[str] = []
    shown: Choices | None = None
    for rule in (rule for text in rules for rule in rules_of(text)):
        shown = rows(made) if shown is None else shown
        if not any(all(fnmatchcase(_field(row, field), pattern) for field, pattern in rule.conditions) for row in shown):
            found.append(str(rule).partition(": ")[0])
    return found


def _field(row: Choice, field: str) -> str:
    value = row.module if field == "module" else getattr(row.problem, field)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return str(value[0]) if field not in ("input", "weight") and len(set(value)) == 1 else "x".join(map(str, value))
    return str(value)


def _choice(entry: dict[str, Any], calls: int, kept: int, prepared: int) -> Choice:
    shape = _numbers(entry["input"])
    axes = max(0, len(shape) - 2)
    again = entry["computed_again"]
    note = (
        [
            f"{again} of all its calls in this process met values that its arithmetic does not carry, and were computed again by gemm"
        ]
        if again
        else []
    )
    return Choice(
        direction=entry["direction"],
        problem=Problem(
            input=shape,
            weight=_numbers(entry["weight"]),
            stride=_numbers(entry["stride"], axes),
            padding=_numbers(entry["padding"], axes),
            dilation=_numbers(entry["dilation"], axes),
            output_padding=_numbers(entry["output_padding"], axes),
            groups=int(entry["groups"] or 1),
            transposed=entry["transposed"] == "true",
            dtype=entry["dtype"].lower(),
            layout=entry["layout"],
        ),
        module=entry["module"],
        asked=entry["asked"],
        ran=entry["ran"],
        provider=entry["provider"],
        math=entry["math"],
        error=entry["error"],
        workspace=entry["workspace"],
        calls=calls,
        weights_kept=kept,
        weights_prepared=prepared,
        reasons=(*entry["reasons"], *note),
    )


def _numbers(text: str, axes: int = 0) -> Shape:
    found = tuple(int(number) for number in text.split("x") if number)
    return found * axes if len(found) == 1 and axes > 1 else found

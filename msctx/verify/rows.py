"""The operators of a run, read from the collector, and how two of them differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from msctx.observers import collector
from msctx.observers.collector import ASK_AGAIN, Reader, Row, dtype_of

Send = Callable[[dict[str, Any]], object]
Ran = dict[str, Any]
"""Its :data:`PLACE`, ``overload``, and its ``inputs`` and ``outputs``: argument, dtype and shape, and digest of each."""
PLACE = ("operator", "module", "direction", "node")
SCRATCH_OUTPUTS = {"aten::mkldnn_rnn_layer": 3, "aten::_cudnn_rnn": 4, "aten::miopen_rnn": 4, "aten::cudnn_batch_norm": 3}
SCRATCH_INPUTS = ("workspace", "reserve", "reserveSpace")
"""Workspaces of libraries, which may write only a part of them: the same results leave different bits there."""


def ran(row: Row) -> Ran:
    """From a row of the collector."""
    scratch = SCRATCH_OUTPUTS.get(row["operator"])
    inputs = [_tensor(one, is_scratch=one["argument"] in SCRATCH_INPUTS) for one in row["inputs"]]
    outputs = [_tensor(one, is_scratch=number == scratch) for number, one in enumerate(row["outputs"])]
    return {**{name: row.get(name, "") for name in (*PLACE, "overload")}, "inputs": inputs, "outputs": outputs}


def _tensor(found: Row, *, is_scratch: bool) -> list[Any]:
    """The digest of a tensor that the collector cannot read is ``None``."""
    content = f"{dtype_of(found)}[{found['shape'].replace('x', ', ')}]"
    return [found["argument"], content, 0 if is_scratch else found.get("digest")]


def difference(one: Ran, other: Ran) -> tuple[str, list[str]] | None:
    """The kind, and the inputs that differ; ``None``: the outputs agree.

    ``operator``: equal inputs and different outputs. ``random``: the same, from a random generator. ``input``: an input differs.
    Inputs count only if the outputs differ: memory that is about to be overwritten may hold anything.
    """
    if one["outputs"] == other["outputs"]:
        return None
    is_random = _is_random(one)
    pairs = zip(one["inputs"], other["inputs"], strict=False)
    inputs = [f"{a[0]} {a[1]}".lstrip() for a, b in pairs if a != b and not (is_random and a[0] == "self")]
    return "input" if inputs else "random" if is_random else "operator", inputs


def _is_random(row: Ran) -> bool:
    """Whether the operator draws from one of torch's generators."""
    space, _, name = row["operator"].partition("::")
    packet = getattr(getattr(torch.ops, space, None), name, None) if name else None
    overload = getattr(packet, row["overload"] or "default", None)
    return torch.Tag.nondeterministic_seeded in getattr(overload, "tags", ())


def differing(one: torch.Tensor, other: torch.Tensor, tolerance: float = 0.0) -> str:
    """``64 / 80 (80.0%) elements, by 0.5 at index (0, 1)``; ``""``: they agree."""
    try:
        torch.testing.assert_close(other, one, rtol=0, atol=tolerance, equal_nan=True)
    except AssertionError as error:
        facts = [line.partition(": ")[2] for line in str(error).splitlines() if ": " in line]
        return f"{facts[0]} elements, by {facts[1]}" if len(facts) > 1 else str(error).splitlines()[0]
    return ""


class DigestReader(Reader):
    """Sends every operator with the digests of its tensors, and the end of every step."""

    def __init__(self, send: Send) -> None:
        self._send = send

    @property
    def requested(self) -> Mapping[str, int]:
        return {"inputs": 1, "outputs": 1, "digests": 1}

    def take(self, rows: list[Row]) -> None:
        for row in rows:
            name = f"{row['operator']}.{row['overload']}".removesuffix(".")
            text = f"calls {name} in module {row['module'] or '(none)'} ({row['node'] or row['direction']})"
            self._send({"does": text, "row": ran(row)})

    def end_step(self) -> None:
        self._send({"does": "ends the step"})


class DetailReader(Reader):
    """Sends one operator of one step, with the line that called it and files of its tensors.

    *call*: operator, module, and how many of these run before it in the step.
    """

    is_choosy = wants_lines = True

    def __init__(self, send: Send, step: int, call: Sequence[Any], folder: Path) -> None:
        self._send, self._step, self._call, self._folder = send, step, tuple(call), folder
        self._met: Counter[tuple[str, str]] = Counter()
        self._line = ""

    @property
    def requested(self) -> Mapping[str, int]:
        return {} if self._step else dict.fromkeys(("inputs", "outputs", "tensors", "attributes"), 1)

    @property
    def folder(self) -> Path:
        return self._folder

    def wants(self, operator: str, module: str, number: int, place: int) -> int:
        if self._step:
            return ASK_AGAIN
        is_it = (operator, module, self._met[operator, module]) == self._call
        self._met[operator, module] += 1
        if is_it:
            self._line = collector.line_here()
        return ASK_AGAIN | is_it

    def take(self, rows: list[Row]) -> None:
        for row in rows:
            self._send({"detail": row | {"called": self._line}})

    def end_step(self) -> None:
        self._step -= 1

"""Reads what the collector finds, in a run: digests of each step, or the tensors of one operator."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from msctx.observers import collector
from msctx.observers.collector import ASK_AGAIN, Reader, Row
from msctx.verify.rows import PARAMETER, Ran, Tensor, digest, digest_of_bits, ran
from msctx.verify.wire import Message

if TYPE_CHECKING:
    from torch import nn

Call = tuple[str, str, int]
MOST = 1 << 18
"""Operators of a step that are kept one by one; of what follows, there are the digests."""


class StepReader(Reader):
    """Calls *ended* with what it found in a step; it may wait there. Processes that the run forks are not read."""

    def __init__(self, ended: Callable[[], object]) -> None:
        self.step = 0
        self._ended = ended
        self._process = os.getpid()

    @property
    def _is_here(self) -> bool:
        return os.getpid() == self._process

    def end_step(self) -> None:
        if self._is_here:
            self._ended()
            self.step += 1


class DigestReader(StepReader):
    """Of each step a digest, digests of what ran in each module without a break, and the operators."""

    def __init__(self, ended: Callable[[], object]) -> None:
        super().__init__(ended)
        self.forget()

    def forget(self) -> None:
        """The next step begins."""
        self.rows: list[Ran] = []
        self._sum = self._count = self._unread = 0
        self._segments: list[list[Any]] = []
        self._open: dict[int, list[Any]] = {}
        self._last = 0.0

    @property
    def asked(self) -> Mapping[str, int]:
        return {"inputs": 1, "outputs": 1, "digests": 1}

    def take(self, rows: list[Row]) -> None:
        for row in rows if self._is_here else ():
            self._add(ran(row))

    def _add(self, one: Ran) -> None:
        self._count += 1
        self._last = max(self._last, one.order)
        self._unread += sum(t.digest is None for t in one.outputs)
        mark = one.mark()
        self._sum = (self._sum + mark) % 2**64  # threads may change the order
        segment = self._open.get(one.thread)
        if segment is None or segment[:2] != [one.direction, one.module]:
            segment = self._open[one.thread] = [one.direction, one.module, 0, 0]
            self._segments.append(segment)
        segment[2:] = [segment[2] + 1, digest((segment[3], mark))]
        if len(self.rows) < MOST:
            self.rows.append(one)

    def meet(self, model: nn.Module) -> None:
        """A model is called for the first time: what its parameters hold goes before what runs in it."""
        collector.flush()
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            self.add_value(PARAMETER, "forward", name, tensor)

    def add_value(self, what: str, direction: str, name: str, tensor: torch.Tensor | None) -> None:
        """A row of what a tensor holds that a model has, or of ``None``; none of a tensor that cannot be read."""
        module, _, leaf = name.rpartition(".")
        if tensor is None:
            value = Tensor(leaf, "none", "", 0)
        elif (bits := digest_of_bits(tensor)) is not None:
            value = Tensor(leaf, str(tensor.dtype).removeprefix("torch."), "x".join(map(str, tensor.shape)), bits)
        else:
            return
        self._last += 1e-6
        self._add(Ran(self._last, 0, what, "", module, direction, "", -1, "", [], [value]))

    @property
    def report(self) -> Message:
        names = {"digest": self._sum, "count": self._count, "unread": self._unread, "segments": self._segments}
        return {"step": self.step, **names}


class DetailReader(StepReader):
    """Of one step, one operator with its tensors as files; and the user's lines that called it and others.

    Args:
        step: the step.
        wanted: the operator, as (operator, module, how many of these ran before in the step).
        others: of which only the lines are wanted.
        folder: for the files.
    """

    is_choosy = True

    def __init__(self, ended: Callable[[], object], step: int, wanted: Call, others: Collection[Call], folder: Path) -> None:
        super().__init__(ended)
        self._step, self._wanted, self._others, self._folder = step, wanted, others, folder
        self._met: Counter[tuple[str, str]] = Counter()
        self.lines: dict[Call, str] = {}
        self.row: Row | None = None
        self.generator = 0
        """A digest of torch's generator before the operator."""

    @property
    def is_there(self) -> bool:
        return self.step == self._step

    @property
    def asked(self) -> Mapping[str, int]:
        return dict.fromkeys(("inputs", "outputs", "tensors", "attributes"), 1) if self.is_there else {}

    @property
    def folder(self) -> Path:
        return self._folder

    def wants(self, operator: str, module: str, number: int, place: int) -> int:
        if not self.is_there or not self._is_here:
            return ASK_AGAIN
        call = operator, module, self._met[operator, module]
        self._met[operator, module] += 1
        if call == self._wanted or call in self._others:
            self.lines[call] = collector.line_here()
        if call == self._wanted:
            self.generator = digest(torch.default_generator.get_state().numpy().tobytes())
        return ASK_AGAIN | (call == self._wanted)

    def take(self, rows: list[Row]) -> None:
        if self._is_here and rows and self.row is None:
            self.row = rows[0]

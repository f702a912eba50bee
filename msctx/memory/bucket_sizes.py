"""aoe_mode=4: how many of DistributedDataParallel's buckets one message should hold, measured in the first backward passes."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated

import torch
from annotated_types import Interval
from torch._C._distributed_c10d import AllreduceOptions, ProcessGroup, ReduceOp

from msctx import notices
from msctx.errors import FileError
from msctx.native.json_file import Format, Text

NAME = "msctx_buckets.json"
BUCKETS = (2, 4, 8)
"""Buckets in a message; beside these: one, and all."""
ROUNDS = 7
"""In each, every size is used for one backward pass; the first does not count."""
Count = Annotated[int, Interval(ge=0, lt=2**63)]


@dataclass(frozen=True, slots=True)
class Case:
    """What a result is for: sizes in bytes."""

    backend: Text
    ranks: Count
    gradients: Count
    bucket: Count


@dataclass(frozen=True, slots=True)
class Found(Case):
    """From how many bytes on a message is sent, 0: each bucket by itself; the seconds of each size, from the first bucket that is
    ready to the last gradient, medians summed over all ranks."""

    message: Count
    seconds: dict[str, float]

    @property
    def case(self) -> Case:
        return Case(self.backend, self.ranks, self.gradients, self.bucket)


@dataclass(frozen=True, slots=True)
class _Document:
    models: list[Found]


FORMAT = Format(
    "msctx buckets",
    *(1, 0, _Document, "file of bucket sizes"),
    aside="move it away (msctx makes a new one), or name another folder with work_path",
    other="name another folder with work_path",
)


class Search:
    """The size of a model's messages: alike on all ranks in every backward pass, which agree by collectives of their own."""

    def __init__(self, group: ProcessGroup, gradients: int, bucket: int, folder: str) -> None:
        self._group, self._path = group, Path(os.path.expanduser(folder)) / NAME
        self._case = Case(str(group.name()), group.size(), gradients, bucket)
        self._sizes = [0, *(size for count in BUCKETS if (size := count * bucket) < gradients), gradients]
        self._times: list[list[float]] = [[] for _ in self._sizes]
        self._passes, self._since, self._message = 0, 0.0, None if gradients > bucket else 0

    @property
    def message(self) -> int:
        """From how many bytes on a message is sent."""
        return self._sizes[self._passes % len(self._sizes)] if self._message is None else self._message

    def begin(self, device: torch.device) -> None:
        """The first bucket of a backward pass is ready."""
        if self._message is None and not self._passes:
            self._message = self._kept(device)
        self._since = perf_counter()

    def end(self, device: torch.device) -> None:
        """All gradients are there."""
        if self._message is not None:
            return
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        self._times[self._passes % len(self._sizes)].append(perf_counter() - self._since)
        self._passes += 1
        if self._passes == ROUNDS * len(self._sizes):
            medians = [median(times[1:]) for times in self._times]
            seconds = self._reduced(medians, ReduceOp.SUM, device)
            self._message = self._sizes[seconds.index(min(seconds))]
            self._keep(seconds)

    def _reduced(self, numbers: Sequence[float], how: ReduceOp.RedOpType, device: torch.device) -> list[float]:
        options = AllreduceOptions()
        options.reduceOp = how  # type: ignore[assignment]  # as c10d itself has it
        found = torch.tensor(numbers, dtype=torch.float64, device=device)
        self._group.allreduce([found], options).wait()
        return found.tolist()

    def _kept(self, device: torch.device) -> int | None:
        """What all ranks know from earlier runs."""
        try:
            known = next((one.message for one in self._read() if one.case == self._case and one.message in self._sizes), -1)
        except FileError as error:
            self._tell(error)
            known = -1
        least, most = self._reduced([known, -known], ReduceOp.MIN, device)
        return int(least) if least == -most >= 0 else None

    def _read(self) -> list[Found]:
        found = FORMAT.read(self._path)
        return found[0].models if found else []

    def _keep(self, seconds: list[float]) -> None:
        if self._group.rank():
            return
        named = {str(size): time for size, time in zip(self._sizes, seconds, strict=True)}
        assert self._message is not None
        made = Found(**asdict(self._case), message=self._message, seconds=named)
        try:
            with FORMAT.locked(self._path):
                models = [made, *(one for one in self._read() if one.case != self._case)]
                lines = ",\n".join(f"    {json.dumps(asdict(one))}" for one in models)
                FORMAT.write(self._path, f'{{\n  {FORMAT.head},\n  "models": [\n{lines}\n  ]\n}}\n')
        except FileError as error:
            self._tell(error)

    def _tell(self, error: FileError) -> None:
        """In a backward pass that other ranks wait for."""
        text = "\n".join(map(str, error.problems))
        notices.warn_or_print("work_path", str(self._path), f"aoe_mode=4: the bucket sizes are not kept: {text}")

"""Measures the problems that aoe_tune_mode=offline has recorded, as performance does when it meets them, for the tuning file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from msctx.compare.cases import images, of_layer
from msctx.compare.workload import NetworkLayer, Product
from msctx.context import context
from msctx.errors import named
from msctx.native import core, tuning, tuning_file
from msctx.native.choices import ConvProblem, parsed
from msctx.native.environment_key import stamp
from msctx.native.tuning_file import Entry, Key
from msctx.native.untuned import Untuned
from msctx.options.conv_rules import PRODUCT, option_of

MEASURED, KNOWN, LEFT = "measured", "known", "left"
"""What became of a problem: LEFT was not measured."""
ANYTHING = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)
"""What a problem may raise that somebody wrote by hand."""


@dataclass(frozen=True)
class Result:
    """One problem: what is chosen for it from now on, or why it was not measured."""

    problem: Untuned
    status: str
    entry: Entry | None = None
    why: str = ""

    @property
    def gain(self) -> float | None:
        """The time of PyTorch's own path in units of that of what was chosen."""
        return self.entry.measured.get("torch") if self.entry is not None else None

    def as_dict(self) -> dict[str, Any]:
        chosen = {"ran": self.entry.ran, "math": self.entry.math} if self.entry is not None else {"ran": None, "math": None}
        return {**asdict(self.problem), "status": self.status, **chosen, "gain": self.gain, "why": self.why}


def by_cost(problems: Iterable[Untuned]) -> list[Untuned]:
    """What computes most in all its calls first: time may not be enough for all."""

    def cost(one: Untuned) -> float:
        try:
            problem, _ = parsed(one.direction, one.problem)
            if one.direction == PRODUCT:
                return one.calls * NetworkLayer("", Product(problem.input, problem.weight)).operations
            return one.calls * NetworkLayer("", problem).operations
        except ANYTHING:  # measuring tells
            return 0

    return sorted(problems, key=lambda one: (-cost(one), one))


class Bench:
    """Measures one problem after the other, and keeps each result at once.

    Args:
        file: the tuning file.
        seconds: for how long to measure in all; ``None``: as long as it takes.
    """

    def __init__(self, file: Path, seconds: float | None = None) -> None:
        tuning_file.merge(file, {}, override=False)  # hours later it would be too late to fail
        self.file, self.seconds = file, math.inf if seconds is None else seconds
        self.library = core.load()
        self._before = self.library.measuring_seconds()

    @contextmanager
    def open(self) -> Iterator[None]:
        with tuning.at_length(self.library):
            yield

    def result(self, one: Untuned) -> Result:
        if one.device == "cuda" and not torch.cuda.is_available():
            return Result(one, LEFT, why="it ran on CUDA, which is not here")
        if (entry := self._entry(one)) is not None:
            return Result(one, KNOWN, entry)
        if self.library.measuring_seconds() - self._before >= self.seconds:
            return Result(one, LEFT, why="no time was left")
        try:
            compute = _computing(one)
            with context(**_options(one), tuning_file=str(self.file)) as ctx, _benchmarking(one), torch.inference_mode():
                compute()
        except ANYTHING as error:
            return Result(one, LEFT, why=named(error).partition("\n")[0])
        if (entry := self._entry(one)) is not None:
            return Result(one, MEASURED, entry)
        whys = [reason for row in ctx.choices() for reason in row.reasons[:1]]
        return Result(one, LEFT, why="; ".join(whys) or "it did not run as it was recorded")

    def _entry(self, one: Untuned) -> Entry | None:
        """What the tuning file has for it that holds here."""
        here = stamp(self.library, one.device)
        groups = tuning_file.read(self.file)
        key = Key(one.direction, one.problem, one.threads, one.permissions)
        for which in sorted(groups, key=lambda s: s != here):
            if key in groups[which] and not which.differs(here)[0]:
                return groups[which][key]
        return None


def _options(one: Untuned) -> dict[str, Any]:
    """The options under which it is the same problem."""
    words = dict(word.partition(" ")[::2] for word in one.permissions.split(", "))
    of = "matmul" if one.direction == PRODUCT else "conv"
    options: dict[str, Any] = {
        option_of(one.direction): "performance",
        f"{of}_allow_tf32": "tf32" in words,
        "allow_fp32_emulation": "fp32-grade" in words,
    }
    options |= {f"{of}_max_error": float(words["error"])} if "error" in words else {}
    options |= {"conv_workspace_limit": int(words["workspace"])} if "workspace" in words else {}
    return options | ({"runtime_num_threads": one.threads} if one.device == "cpu" else {})


@contextmanager
def _benchmarking(one: Untuned) -> Iterator[None]:
    """torch's own path on CUDA, as it was asked for."""
    before = torch.backends.cudnn.benchmark
    try:
        if one.device == "cuda":
            torch.backends.cudnn.benchmark = "torch benchmarks" in one.permissions
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _computing(one: Untuned) -> Callable[[], Any]:
    """What computes a problem, with tensors of its own."""
    problem, epilogue = parsed(one.direction, one.problem)
    device = torch.device(one.device)
    if one.direction == PRODUCT:
        return _product(problem, epilogue, device)
    if epilogue:
        return _finished(problem, epilogue)
    (case,) = of_layer(NetworkLayer("", problem), [one.direction], device)
    return case.run


def _product(problem: ConvProblem, epilogue: str, device: torch.device) -> Callable[[], Any]:
    dtype = getattr(torch, problem.dtype)
    lying = ["NT".index(letter) for letter in problem.layout]
    a, b = (_matrix(shape, bool(t), dtype, device) for shape, t in zip((problem.input, problem.weight), lying, strict=True))
    if not epilogue:
        return lambda: torch.matmul(a, b)
    finishing = _finishing(epilogue, b.shape[1], torch.rand(a.shape[0], b.shape[1]))
    return lambda: torch.ops.msctx.linear(a, b, *finishing)


def _matrix(shape: tuple[int, ...], transposed: bool, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """*transposed*: its columns lie together, with more than one place from row to row of memory, or it would be no transpose."""
    if not transposed:
        return torch.randn(shape, device=device).to(dtype)
    *batches, rows, columns = shape
    return torch.randn(*batches, columns, max(rows, 2), device=device).to(dtype)[..., :rows].mT


def _finished(problem: ConvProblem, epilogue: str) -> Callable[[], Any]:
    """A convolution with what follows it in its call, as graph mode makes them."""
    x, weight, other = images(problem, torch.device("cpu"))
    finishing = _finishing(epilogue, weight.shape[0], other)
    along = [[*sizes] for sizes in (problem.stride, problem.padding, problem.dilation)]
    return lambda: torch.ops.msctx.convolution(x, weight, *along, problem.groups, *finishing)


def _finishing(epilogue: str, channels: int, other: torch.Tensor) -> list[Any]:
    """The arguments of msctx's operators for it."""
    words = epilogue.split("+")
    activation = next((word for word in words if word not in ("scale", "shift", "add")), "none")
    scale, shift = torch.rand(2, channels)
    values = [value if name in words else None for name, value in (("scale", scale), ("shift", shift), ("add", other))]
    return [*values, activation, 0.0, 6.0, words[-1] == "add" and activation != "none"]

"""Faults of ten kinds in ten places, two runs in this process: each is named at its module and operator. For two more kinds, see
test_compiled_graphs.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import msctx
from msctx.observers import collector
from msctx.verify.match import Difference, first_difference
from msctx.verify.reader import DigestReader
from msctx.verify.replica import ReplicaReader
from msctx.verify.rows import Ran

PLACES = range(10)
now = {"is faulty": False}


@torch.library.custom_op("planted_faults::shift", mutates_args=())
def shift(x: torch.Tensor) -> torch.Tensor:
    """A kernel that is wrong in one of the runs."""
    return x + 1e-3 if now["is faulty"] else x.clone()


shift.register_autograd(lambda ctx, gradient: gradient)


@torch.library.custom_op("planted_faults::scatter", mutates_args=())
def scatter(x: torch.Tensor) -> torch.Tensor:
    """Sums in another order, as where threads race."""
    rows = [*x * 1e3][:: -1 if now["is faulty"] else 1]
    total = torch.zeros_like(x[0])
    for row in rows:
        total = total * 1.01 + row
    return x + total * 1e-4


scatter.register_autograd(lambda ctx, gradient: gradient)


@torch.library.custom_op("planted_faults::mean_of_threads", mutates_args=())
def mean_of_threads(x: torch.Tensor) -> torch.Tensor:
    """Each thread sums a piece; what does not divide by their number belongs to none."""
    each = x.numel() // torch.get_num_threads()
    pieces = [x.flatten()[each * one : each * (one + 1)].sum() for one in range(torch.get_num_threads())]
    return x - torch.stack(pieces).sum() / x.numel()


mean_of_threads.register_autograd(lambda ctx, gradient: gradient)


@torch.library.custom_op("planted_faults::scale", mutates_args=())
def scale(x: torch.Tensor) -> torch.Tensor:
    """Scales a gradient, and takes the scale away again: in float16 it overflows."""
    dtype = torch.float16 if now["is faulty"] else torch.float32
    return ((x.to(dtype) * 2**15) * 2**15).float() / 2**30


class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, wrong: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        ctx.wrong = wrong
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return ctx.wrong(gradient), None


def in_backward(wrong: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: Backward.apply(x, wrong)


class Block(nn.Module):
    def __init__(self, act: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.inner, self.act = nn.Linear(6, 6), act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.inner(x)) + x


def noisy(x: torch.Tensor) -> torch.Tensor:
    if now["is faulty"]:
        torch.manual_seed(7)
    return nn.functional.dropout(x)


def given(x: torch.Tensor) -> torch.Tensor:
    return x + torch.tensor([[2.0 if now["is faulty"] else 1.0]] * 5)


ACTS = {
    "kernel": shift,
    "backward": in_backward(shift),
    "float16": in_backward(scale),
    "sum": scatter,
    "threads": mean_of_threads,
    "random": noisy,
    "data": given,
}
KINDS = {
    "kernel": ("operator", "planted_faults::shift", "{}", "forward"),
    "backward": ("operator", "planted_faults::shift", "{}", "backward"),
    "sum": ("operator", "planted_faults::scatter", "{}", "forward"),
    "float16": ("operator", "planted_faults::scale", "{}", "backward"),
    "threads": ("operator", "planted_faults::mean_of_threads", "{}", "forward"),
    "random": ("random", "aten::bernoulli_", "{}", "forward"),
    "data": ("input", "aten::add", "{}", "forward"),
    "parameter": ("parameter", "parameter", "{}.inner", "forward"),
    "replica": ("parameter", "parameter", "{}.inner", "optimizer"),
    "gradient": ("gradient", "gradient", "{}.inner", "optimizer"),
}


@pytest.fixture
def rows_of() -> Iterator[Callable[..., list[Ran]]]:
    threads = torch.get_num_threads()

    def run(kind: str, place: int, *, is_faulty: bool) -> list[Ran]:
        now["is faulty"] = is_faulty
        torch.set_num_threads(4 if is_faulty and kind == "threads" else 1)
        torch.manual_seed(0)
        model = nn.Sequential(*[Block(ACTS.get(kind, torch.tanh) if one == place else torch.tanh) for one in PLACES])
        weight = model[place].inner.weight
        if is_faulty and kind == "parameter":
            weight.data[0, 0] = float("nan")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
        found: list[Ran] = []
        reader = (ReplicaReader if kind in ("replica", "gradient") else DigestReader)(lambda: found.extend(reader.rows))
        with msctx.context().watch(model):
            collector.put("test", reader)
            reader.meet(model)
            model(torch.randn(5, 6)).pow(2).sum().backward()
            if is_faulty and kind == "replica":
                weight.data[0, 0] += 1
            if is_faulty and kind == "gradient":
                weight.grad[0, 0] += 1  # type: ignore[index]
            optimizer.step()
            collector.put("test", None)
        return sorted(found, key=lambda row: row.order)

    yield run
    collector.put("test", None)
    torch.set_num_threads(threads)


@pytest.mark.full
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_planted_faults(kind: str, place: int, rows_of: Callable[..., list[Ran]]) -> None:
    found = first_difference(rows_of(kind, place, is_faulty=False), rows_of(kind, place, is_faulty=True))
    assert isinstance(found, Difference)
    row = next(row for row in found.rows if row is not None)
    what, operator, module, direction = KINDS[kind]
    assert (found.kind, row.operator, row.module, row.direction) == (what, operator, module.format(place), direction)

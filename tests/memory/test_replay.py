"""Blocks of all kinds computed again: with the parameters, buffers, modes and random numbers that they had."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from trained_blocks import rows, same, train

import msctx

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_left_in_the_pool")


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.f = nn.Linear(8, 8)
        self.register_buffer("average", torch.zeros(8))

    def forward(self, x: Any, **more: Any) -> Any:
        return torch.tanh(self.f(x))


class NewBuffer(Plain):
    def forward(self, x: Any, **more: Any) -> Any:
        self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
        return torch.tanh(self.f(x) - self.average)


class BufferInPlace(Plain):
    def forward(self, x: Any, **more: Any) -> Any:
        self.average.mul_(0.5).add_(x.detach().mean(0))
        return torch.tanh(self.f(x) - self.average)


class PythonsRandom(Plain):
    def forward(self, x: Any, **more: Any) -> Any:
        return torch.tanh(self.f(x) * (1 + random.random()) * (1 + np.random.rand()))


class Skips(Plain):
    def forward(self, x: Any, **more: Any) -> Any:
        return x if random.random() < 0.5 else torch.tanh(self.f(x))


class WritesToInput(Plain):
    def forward(self, x: Any, **more: Any) -> Any:
        return self.f(x.mul_(0.7))


class Counts(Plain):
    count = 0

    def forward(self, x: Any, **more: Any) -> Any:
        self.count += 1
        return torch.tanh(self.f(x) * self.count)


class CountsOutside(Plain):
    numbers = (number for number in itertools.count(1))

    def forward(self, x: Any, **more: Any) -> Any:
        return torch.tanh(self.f(x) * next(self.numbers))


class Modes(Plain):
    def forward(self, x: Any, **more: Any) -> Any:
        return torch.tanh(self.f(x)) if self.training else self.f(x)


class OwnGenerators(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = random.Random(0), np.random.default_rng(0), np.random.RandomState(0)
        self.fourth = torch.Generator().manual_seed(0)

    def forward(self, x: Any, **more: Any) -> Any:
        noise = torch.rand(8, generator=self.fourth) + self.first.random() + self.second.random() + self.third.rand()
        return torch.tanh(self.f(x) * noise)


class CountsItsCalls(Plain):
    """And keeps something, in a loss of its own."""

    calls = 0

    def forward(self, x: Any, **more: Any) -> Any:
        self.calls += 1
        self.average.fill_(self.calls)
        h = torch.tanh(self.f(x))
        self.kept = h.square().sum()
        return h


KINDS = [Plain, NewBuffer, BufferInPlace, PythonsRandom, Skips, WritesToInput, Counts, Modes, OwnGenerators, CountsItsCalls]


def losses(kind: type[Plain], **options: Any) -> tuple[list[torch.Tensor], Any]:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    model = nn.Sequential(nn.Linear(8, 8), *[kind() for _ in range(3)])
    found = []
    with msctx.context(**options) as ctx:
        ctx.watch(model)
        for _ in range(4):
            loss = model(torch.randn(4, 8)).square().sum()
            torch.stack([loss, *(block.kept for block in model if hasattr(block, "kept"))]).sum().backward()
            found += [block.kept.detach() for block in model if hasattr(block, "kept")]
            model.eval()
            model.train()
            found += [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    return [*found, *model.buffers()], (random.random(), np.random.rand(), torch.rand(3).tolist())


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_all_kinds_have_the_same_bits(kind: type[Plain]) -> None:
    plain, again = losses(kind), losses(kind, memory_optimize_level="O1")
    assert plain[1] == again[1], "random numbers go on as they would have"
    assert len(plain[0]) == len(again[0])
    assert all(torch.equal(one, other) for one, other in zip(plain[0], again[0], strict=True))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(WritesToInput, "it writes to its inputs"), (CountsOutside, "computing it again gives other results")],
)
def test_what_cannot_be_computed_again_is_left_and_told(kind: type[Plain], reason: str) -> None:
    model = nn.Sequential(nn.Linear(8, 8), kind())
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(model)
        model(torch.randn(4, 8)).sum().backward()
    assert [(row["recomputed"], row["reason"]) for row in rows(model)] == [(False, reason)]


@pytest.mark.parametrize("kind", [Counts, OwnGenerators, CountsItsCalls])
def test_attributes_of_modules_are_what_they_were(kind: type[Plain]) -> None:
    model = nn.Sequential(nn.Linear(8, 8), kind())
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(model)
        model(torch.randn(4, 8)).sum().backward()
    assert [row["recomputed"] for row in rows(model)] == [True]
    vars(model[1]).pop("kept", None)  # a graph that the block holds, and that holds the block: so it is with every checkpoint


def test_lists_that_grow_and_names_that_checkpoint_has_too() -> None:
    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([Wide(count) for count in (1, 2, 3)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            features = [x]
            for block in self.blocks:
                features.append(block(features, function=1.5, debug=True, use_reentrant=True))
            return torch.cat(features, 1)

    class Wide(nn.Module):
        def __init__(self, count: int) -> None:
            super().__init__()
            self.f = nn.Linear(8 * count, 8)

        def forward(self, features: list[torch.Tensor], function: float, debug: bool, use_reentrant: bool) -> torch.Tensor:
            return torch.tanh(self.f(torch.cat(features, 1))) * function

    def made() -> nn.Module:
        torch.manual_seed(0)
        return Dense()

    x = torch.randn(4, 8)
    model = made()
    assert same(train(made(), x=x)[0], train(model, x=x, memory_optimize_level="O1")[0])
    assert all(row["recomputed"] for row in rows(model))


def test_a_list_that_a_block_appends_to() -> None:
    class Appends(Plain):
        def forward(self, x: Any, found: Any = None, **more: Any) -> Any:
            found.append(h := torch.tanh(self.f(x)))
            return h

    def gradients(**options: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        block = Appends()
        model = nn.ModuleList([block])
        found: list[torch.Tensor] = []
        with msctx.context(**options) as ctx:
            ctx.watch(model)
            block(torch.ones(2, 8), found)
            sum(h.sum() for h in found).backward()  # type: ignore[union-attr]
        assert len(found) == 1
        return [parameter.grad for parameter in block.parameters() if parameter.grad is not None]

    for one, other in zip(gradients(), gradients(memory_optimize_level="O1"), strict=True):
        assert torch.equal(one, other)


def test_backward_twice_and_through_itself() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(Plain(), BufferInPlace()), torch.randn(4, 8, requires_grad=True)

    def found() -> list[torch.Tensor]:
        model[1].average.zero_()
        model.zero_grad()
        loss = model(x).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        slope.square().sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    expected = found()
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(model)
        for one, other in zip(expected, found(), strict=True):
            assert torch.equal(one, other)


def test_other_parameters_transforms_and_changes_between() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(Plain(), Plain()), torch.randn(4, 8)
    new = {name: torch.randn_like(value).requires_grad_() for name, value in model.named_parameters()}

    def gradients() -> list[torch.Tensor]:
        return [*torch.autograd.grad(torch.func.functional_call(model, new, x).sum(), [*new.values()])]

    def by_sample() -> dict[str, torch.Tensor]:
        def loss(values: dict[str, torch.Tensor], one: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(model, values, one[None]).sum()

        return torch.func.vmap(torch.func.grad(loss), (None, 0))({name: value.detach() for name, value in new.items()}, x)

    expected, samples = gradients(), by_sample()
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(model)
        for _ in range(3):
            assert all(torch.equal(one, other) for one, other in zip(expected, gradients(), strict=True))
        assert same(samples, by_sample())
        loss = model(x).sum()
        with torch.no_grad():
            model[0].f.weight.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

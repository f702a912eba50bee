"""O1 beyond the passes that are looked at: what a block does for the first time later gives the same bits, or an error."""

from __future__ import annotations

import random
import threading
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from block_programs import HEADS, LOG, WIDTH, Block, Forward, Later, are_same, trained
from torch import nn
from torch.nn import functional as fn
from trained_blocks import rows

import msctx

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_left_in_the_pool")


def draws(block: Block, x: torch.Tensor) -> torch.Tensor:
    return x * random.random() + np.random.rand()


def normalises(block: Block, x: torch.Tensor) -> torch.Tensor:
    """No version counter shows what becomes of the averages."""
    return fn.batch_norm(x, block.mean, block.var, training=True)


def averages(block: Block, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        block.state.average.mul_(0.9).add_(x.mean(0), alpha=0.1)
    return x


def counts(block: Block, x: torch.Tensor) -> torch.Tensor:
    block.state.counts["seen"] += 1
    return x


def logs(block: Block, x: torch.Tensor) -> torch.Tensor:
    block.state.log.append(1)
    return x


def writes(block: Block, x: torch.Tensor) -> torch.Tensor:
    block.g.bias.data.mul_(0.5)
    return x


def makes(block: Any, x: torch.Tensor) -> torch.Tensor:
    """Once, a module of its own: computed again, it would make another one, with the same bits and without gradients."""
    if block.adapter is None:
        block.adapter = nn.Linear(WIDTH, WIDTH)
    made: torch.Tensor = block.adapter(x)
    return made


class Seeds(Block):
    """The state of the generator is the same before and after it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)
        return super().forward(x) * torch.rand(1)


def test_a_block_that_seeds_leaves_the_numbers_of_others_alone() -> None:
    are_same(lambda: [Seeds(), nn.Dropout(0.5), Seeds(), Block()], recomputed=None)


@pytest.mark.parametrize("later", [draws, normalises, makes])
def test_the_same_bits(later: Forward, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 1)  # else numbers may be drawn by another thread
    are_same(lambda: [Later(later), Later(later)])


@pytest.mark.usefixtures("another_thread")
def test_numbers_that_another_thread_may_have_drawn_are_not_put_back() -> None:
    with pytest.raises(RuntimeError, match="gives other bits than before"):
        trained(lambda: [Later(draws), Later(draws)], memory_optimize_level="O1")


def writes_past_versions(block: Block, x: torch.Tensor) -> torch.Tensor:
    block.book.data.mul_(0.9).add_(x.detach().mean())
    return x + (block.book.mean() - x).detach()


@pytest.mark.parametrize("later", [averages, counts, logs, writes, writes_past_versions])
def test_an_error_where_it_has_been_done_twice(later: Forward) -> None:
    with pytest.raises(RuntimeError, match=r"(changes .* and has now done so twice|gives other bits than before)"):
        trained(lambda: [Later(later), Later(later)], memory_optimize_level="O1")


class NormalisesMuch(Block):
    """No version counter shows it, and its averages are too large to be copied in each pass."""

    def later(self, x: torch.Tensor) -> torch.Tensor:
        much = torch.ones(2, self.book.numel())
        fn.batch_norm(much, self.book.view(-1), torch.ones(self.book.numel()), training=True)
        return x


def test_an_error_where_large_averages_have_been_updated_twice() -> None:
    with pytest.raises(RuntimeError, match="changes buffers, and has now done so twice"):
        trained(lambda: [NormalisesMuch(), NormalisesMuch()], memory_optimize_level="O1")


class Head(Block):
    """A global variable selects which parameters it computes with."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh((self.f, self.g)[HEADS[0]](x))


def other_head(_: nn.Module) -> None:
    HEADS[0] = 1


def other_module(model: nn.Module) -> None:
    model[1][0].f = nn.Linear(WIDTH, WIDTH)


def test_other_parameters_than_in_the_forward_pass_are_an_error() -> None:
    with pytest.raises(RuntimeError, match="gives other bits than before"):
        trained(lambda: [Head(), Head()], other_head, memory_optimize_level="O1")


def test_a_module_that_is_replaced_before_the_backward_pass_is_computed_again_all_the_same() -> None:
    plain, under = (trained(lambda: [Head(), Head()], other_module, **how) for how in ({}, {"memory_optimize_level": "O1"}))
    assert plain[0] == under[0]
    assert len(plain) == len(under) - 2  # rows


def test_hooks_that_are_registered_between_are_an_error() -> None:
    def register(model: nn.Module) -> None:
        model[1][0].f.register_forward_hook(lambda *_: LOG.append(1))

    with pytest.raises(RuntimeError, match="hooks were registered in block"):
        trained(lambda: [Block(), Block()], register, memory_optimize_level="O1")


class Lazily(Block):
    """Makes what it changes in its first pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "seen"):
            self.seen = [0]
        else:
            self.seen[0] += 1
        return super().forward(x)


class HooksLater(Block):
    def later(self, x: torch.Tensor) -> torch.Tensor:
        x.register_hook(lambda gradient: gradient * 2)
        return x


class Rebinds(Block):
    def later(self, x: torch.Tensor) -> torch.Tensor:
        global AVERAGE
        AVERAGE = AVERAGE * 0.9 + float(x.detach().mean())
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + AVERAGE.mean() * 0)


AVERAGE = torch.zeros(1)


@pytest.mark.parametrize("kind", [Lazily, HooksLater])
def test_an_error_where_a_later_pass_changes_what_an_earlier_one_made_or_took(kind: type[nn.Module]) -> None:
    with pytest.raises(RuntimeError, match=r"changes .* and has now done so twice"):
        trained(lambda: [kind(), kind()], memory_optimize_level="O1")


def test_an_error_where_a_later_pass_binds_a_global_variable_anew() -> None:
    global AVERAGE
    before = AVERAGE
    try:
        with pytest.raises(RuntimeError, match=r"(changes .* and has now done so twice|gives other bits than before)"):
            trained(lambda: [Rebinds(), Rebinds()], memory_optimize_level="O1")
    finally:
        AVERAGE = before


# --- a block runs to its end ------------------------------------------------------------------------------------------


def default_dtype(block: Block, x: torch.Tensor) -> torch.Tensor:
    was = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    y = torch.tanh(block.f(x))
    torch.set_default_dtype(was)
    return y


def autocast_by_hand(block: Block, x: torch.Tensor) -> torch.Tensor:
    autocast = torch.autocast("cpu", torch.bfloat16)
    autocast.__enter__()
    y = torch.tanh(block.f(x))
    autocast.__exit__(None, None, None)
    return y.float()


def fake_quantises(block: Block, x: torch.Tensor) -> torch.Tensor:
    y = torch.relu(block.f(x))
    y.data.copy_((y.data * 4).round() / 4)
    return y


def falls_back(block: Block, x: torch.Tensor) -> torch.Tensor:
    try:
        return torch.tanh(block.f(x))
    except Exception:
        return torch.sin(block.f(x))


def names_itself(block: Block, x: torch.Tensor) -> torch.Tensor:
    try:
        return torch.tanh(block.f(x))
    except Exception as error:
        raise ValueError("in this block") from error


def freezes_for_a_while(block: Block, x: torch.Tensor) -> torch.Tensor:
    block.g.requires_grad_(False)
    y = torch.tanh(block.g(block.f(x)))
    block.g.requires_grad_(True)
    return y


ENDS = [default_dtype, autocast_by_hand, fake_quantises, falls_back, names_itself, freezes_for_a_while]


class Straight(Block):
    def __init__(self, body: Forward) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(self, x)


@pytest.mark.parametrize("body", ENDS)
def test_what_a_block_does_after_its_last_save_is_done_again_too(body: Forward) -> None:
    are_same(lambda: [Straight(body), Straight(body)])
    assert torch.get_default_dtype() is torch.float32
    assert not torch.is_autocast_enabled("cpu")


class SwallowsErrors(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.f(x)
        try:
            return torch.tanh(h * (1 + HEADS[0]))
        except Exception:
            return torch.sin(h)


def test_an_error_that_a_block_swallows_is_raised_all_the_same() -> None:
    with pytest.raises(RuntimeError, match="gives other bits than before"):
        trained(lambda: [SwallowsErrors(), SwallowsErrors()], other_head, memory_optimize_level="O1")


def test_an_error_of_the_second_computation_names_the_block() -> None:
    with pytest.raises(RuntimeError, match=r"block '1\.1' again for the backward pass fails \(IndexError: "):
        trained(lambda: [Head(), Head()], lambda _: HEADS.clear(), memory_optimize_level="O1")


class Grows(Block):
    """A buffer is another one after each pass."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bank", torch.zeros(30_000, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.f(x) + self.bank.mean(0))
        self.bank = torch.cat([y.detach(), self.bank])[:30_000]
        return y


def test_a_buffer_that_is_another_one_needs_no_copy() -> None:
    are_same(lambda: [Grows(), Grows()])


# --- objects that it receives -----------------------------------------------------------------------------------------


class Graph:
    def __init__(self, x: torch.Tensor) -> None:
        self.x, self.all = x, [x]


class OfGraph(Block):
    def forward(self, graph: Graph) -> torch.Tensor:
        return super().forward(graph.x)


def test_a_block_whose_caller_changes_what_it_received_is_left_alone() -> None:
    def trained_on_graphs(**options: Any) -> tuple[list[torch.Tensor], list[dict[str, Any]]]:
        torch.manual_seed(0)
        model = nn.Module()
        model.blocks = nn.ModuleList([OfGraph(), OfGraph()])

        def forward(x: torch.Tensor) -> torch.Tensor:
            graph = Graph(x)
            for block in model.blocks:
                graph.x = block(graph)
            return graph.x

        model.forward = forward
        found = []
        with msctx.context(**options) as ctx:
            ctx.watch(model)
            for _ in range(4):
                model.zero_grad()
                model(torch.randn(4, WIDTH)).square().mean().backward()
                found += [p.grad.clone() for p in model.parameters()]
            return found, rows(model) if options else []

    plain, _ = trained_on_graphs()
    under, decided = trained_on_graphs(memory_optimize_level="O1")
    assert all(torch.equal(a, b) for a, b in zip(plain, under, strict=True))
    assert {row["reason"] for row in decided} == {"an object that it receives is changed before its backward pass: args[0].x"}


class Cells(nn.Module):
    """Of what an LSTM keeps, torch leaves some parts unset."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.norm = nn.LSTM(WIDTH, WIDTH, 2, batch_first=True, dropout=0.3), nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        many, _ = self.cells(x.unsqueeze(1).expand(-1, 3, -1))
        made: torch.Tensor = x + self.norm(many[:, -1])
        return made


class Noise(nn.Module):
    """RReLU's, too, of what is not negative."""

    def __init__(self) -> None:
        super().__init__()
        self.f, self.noise = nn.Linear(WIDTH, WIDTH), nn.RReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = x + self.noise(self.f(x))
        return made


def unfreezes(model: nn.Module, step: int) -> None:
    model[0].requires_grad_(step > 0)


def alternates(model: nn.Module, step: int) -> None:
    model.to(torch.float64 if step % 2 else torch.float32)


@pytest.mark.parametrize(("block", "change"), [(Cells, unfreezes), (Noise, alternates)])
def test_a_block_that_saves_otherwise_later_is_looked_at_again(block: Any, change: Any) -> None:
    def trained_steps(**options: str) -> list[Any]:
        torch.manual_seed(0)
        model = nn.Sequential(*(block() for _ in range(4)))
        with msctx.context(**options) as ctx:
            ctx.watch(model)
            for step in range(6):
                change(model, step)
                model.zero_grad()
                x = torch.randn(8, WIDTH, dtype=next(model.parameters()).dtype)
                model(x).square().mean().backward()
        return [p.grad for p in model.parameters()]

    found, right = trained_steps(memory_optimize_level="O1"), trained_steps()
    assert all(map(torch.equal, found, right))


def test_what_a_try_may_have_changed_is_reported_once() -> None:
    class Draws(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = super().forward(x) * self.engine.draw(1)
            return made

    model = nn.Sequential(Draws(), Draws())
    for block in model:
        block.engine = torch.quasirandom.SobolEngine(WIDTH, scramble=True, seed=1)
    with warnings.catch_warnings(record=True) as found, msctx.context(memory_optimize_level="O1") as ctx:
        warnings.simplefilter("always")
        ctx.watch(model)
        for _ in range(4):
            model(torch.randn(3, WIDTH)).square().mean().backward()
    (text,) = [str(one.message) for one in found if "block '0'" in str(one.message)]
    assert "gave other results when it was computed again" in text

"""Blocks of all kinds computed again: with the parameters, buffers, modes and random numbers that they had."""

from __future__ import annotations

import signal
from typing import Any

import pytest
import torch
from torch import nn
from trained_blocks import rows, same, train

import msctx
from msctx.memory.fingerprints import fingerprint

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_left_in_the_pool")


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.f = nn.Linear(8, 8)
        self.register_buffer("average", torch.zeros(8))

    def forward(self, x: Any, **more: Any) -> Any:
        return torch.tanh(self.f(x))


class BufferInPlace(Plain):
    def forward(self, x: Any, **more: Any) -> Any:
        self.average.mul_(0.5).add_(x.detach().mean(0))
        return torch.tanh(self.f(x) - self.average)


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


# --- what is read and changes between forward and backward ------------------------------------------------------------


class Settings:
    scale = 1.0


SETTINGS, SCALE, SCALES, NOISE = Settings(), 1.0, [1.0], torch.zeros(8)


class ReadsObject(Plain):
    def forward(self, x: Any, **more: Any) -> Any:
        return x + torch.tanh(self.f(x) * SETTINGS.scale)


class ReadsGlobal(Plain):
    def forward(self, x: Any, **more: Any) -> Any:
        return x + torch.tanh(self.f(x) * SCALE)


class ReadsList(Plain):
    def forward(self, x: Any, **more: Any) -> Any:
        return x + torch.tanh(self.f(x) * SCALES[0])


class ReadsClass(Plain):
    scale = 1.0

    def forward(self, x: Any, **more: Any) -> Any:
        return x + torch.tanh(self.f(x) * self.scale)


class ReadsTensor(Plain):
    def forward(self, x: Any, **more: Any) -> Any:
        return x + torch.tanh(self.f(x) + NOISE)


class ReadsOrder(Plain):
    """What is saved has the same values in another order."""

    def forward(self, x: Any, **more: Any) -> Any:
        return self.f(torch.tanh(x).roll(int(SCALES[0]), 1)).mean(1, keepdim=True) * x


def change(value: float) -> None:
    global SCALE
    SETTINGS.scale = SCALE = SCALES[0] = ReadsClass.scale = value
    NOISE.fill_(value - 1)


@pytest.mark.parametrize("kind", [ReadsObject, ReadsGlobal, ReadsList, ReadsClass, ReadsTensor, ReadsOrder])
@pytest.mark.parametrize("size", [4, 4096])
def test_what_a_block_reads_and_does_not_own_may_not_change_before_its_backward_pass(kind: type[Plain], size: int) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8), kind()), torch.randn(size, 8)
    model(x).sum().backward()
    expected = [parameter.grad for parameter in model.parameters()]
    try:
        with msctx.context(memory_optimize_level="O1") as ctx:
            ctx.watch(model)
            for _ in range(3):
                model.zero_grad()
                model(x).sum().backward()
            assert [row["recomputed"] for row in rows(model)] == [True]
            for one, parameter in zip(expected, model.parameters(), strict=True):
                assert torch.equal(one, parameter.grad)  # type: ignore[arg-type]
            loss = model(x).sum()
            change(2.0)
            with pytest.raises(RuntimeError, match="computing block '1' again for the backward pass gives other bits"):
                loss.backward()
    finally:
        change(1.0)


class Convolves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.tanh(self.one(x)))


def test_a_backward_pass_outside_the_algorithms_of_its_forward_pass() -> None:
    torch.manual_seed(0)
    model, x = nn.ModuleList([Convolves()]), torch.randn(2, 8, 16, 16)
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(model)
        with msctx.context(conv_fprop_algo="winograd"):
            loss = model[0](x).square().sum()
            model[0](x).square().sum().backward()
        with pytest.raises(RuntimeError, match="other bits than before"):
            loss.backward()


class Recurrent(nn.Module):
    """oneDNN leaves a part of what it saves unset."""

    def __init__(self) -> None:
        super().__init__()
        self.f = nn.LSTM(64, 64, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.f(x)[0]


def test_what_operators_leave_unset_is_not_compared() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Recurrent(), Recurrent())
    with msctx.context(memory_optimize_level="O1") as ctx:
        ctx.watch(model)
        for value in range(4):
            loss = model(torch.randn(4, 33, 64)).square().mean()
            _ = [torch.full((3000 * 2**number,), float(value)) for number in range(8)]
            loss.backward()
    assert all(row["recomputed"] for row in rows(model))


@pytest.mark.parametrize("of_all", ["register_module_forward_hook", "register_module_forward_pre_hook"])
def test_hooks_of_all_modules_leave_blocks_alone(of_all: str) -> None:
    calls = []
    handle = getattr(nn.modules.module, of_all)(lambda *_: calls.append(1))
    model, row = nn.Sequential(nn.Linear(8, 8), Plain()), nn.Sequential(*[nn.Linear(8, 8), nn.ReLU()] * 4)
    try:
        with msctx.context(memory_optimize_level="O1") as ctx:
            ctx.watch(model).watch(row)
            model(torch.randn(4, 8)).sum().backward()
            row(torch.randn(4, 8)).sum().backward()
    finally:
        handle.remove()
    assert len(calls) == 4 + 9
    ((recomputed, reason),) = [(row["recomputed"], row["reason"]) for row in rows(model)]
    assert not recomputed
    assert reason.startswith("calls of its modules run hooks, which would run again: test_replay.test_hooks_of_all_modules")


@pytest.mark.parametrize("call", [2, 3], ids=["computed again at once", "backward"])
def test_what_a_signals_handler_raises_is_no_error_of_the_block(call: int) -> None:
    """It passes through unchanged, and the block is recomputed from the next step on."""

    calls = []

    @torch.library.custom_op(f"test_replay::alarm_{call}", mutates_args=())
    def alarm(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) == call:
            signal.raise_signal(signal.SIGALRM)
        return x.clone()

    alarm.register_autograd(lambda ctx, gradient: gradient)

    class Slow(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return alarm(super().forward(x))

    def raises(*_: object) -> None:
        raise TimeoutError("too slow")

    before = signal.signal(signal.SIGALRM, raises)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(2)], Slow(nn.Linear(8, 8), nn.ReLU()))
    try:
        with msctx.context(memory_optimize_level="O1") as ctx:
            ctx.watch(model)
            with pytest.raises(TimeoutError, match="too slow"):
                model(torch.randn(4, 8)).sum().backward()
            assert len(calls) == call
            model(torch.randn(4, 8)).sum().backward()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert all(row["recomputed"] for row in rows(model)), [*rows(model)]


DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.complex64, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_fingerprint_is_of_the_bits(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for height, width in ((3, 5), (64, 1031)):
        whole = torch.randn(2 * height, width) * 100
        whole = whole > 0 if dtype is torch.bool else whole.to(dtype)
        for tensor in (whole, whole.T, whole[::2], whole[1:, 1:], whole[0].expand(4, -1), whole[:0], whole[0, 0]):
            before = fingerprint(tensor)
            assert before == fingerprint(tensor)
            if tensor.dim() == 2 and len(tensor):
                tensor[-1, -1] = ~tensor[-1, -1] if dtype is torch.bool else tensor[-1, -1] + 16
                assert fingerprint(tensor) != before, "one value"
        if dtype.is_floating_point:
            assert fingerprint(-whole) != fingerprint(whole), "all signs"
        assert fingerprint(whole.flip(0)) != fingerprint(whole), "another order"

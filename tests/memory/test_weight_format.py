"""variable_format_optimize: other strides for the weights of convolutions, and the same parameters, values and training."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import msctx
from msctx.memory import parameters

LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
KINDS = [
    pytest.param(lambda: nn.Conv2d(4, 6, 3), id="2-D"),
    pytest.param(lambda: nn.Conv3d(4, 6, 3), id="3-D"),
    pytest.param(lambda: nn.ConvTranspose2d(4, 6, 3), id="transposed"),
    pytest.param(lambda: nn.Conv2d(4, 6, 1), id="1x1"),
    pytest.param(lambda: nn.Conv2d(4, 8, 3, groups=4), id="depthwise"),
]


def favoured(weight: torch.Tensor) -> tuple[int, ...]:
    return torch.empty(weight.shape, device="meta", memory_format=LAST[weight.ndim]).stride()


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(64, 2))


IMAGES = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, count: int, *, keep: bool = False) -> None:
    for _ in range(count):
        optimizer.zero_grad(set_to_none=not keep)

        def loss() -> torch.Tensor:
            if isinstance(optimizer, torch.optim.LBFGS):
                optimizer.zero_grad()
            found = model(IMAGES).square().mean()
            found.backward()
            return found

        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(loss)
        else:
            loss()
            optimizer.step()


def strides(model: nn.Module) -> list[tuple[int, ...]]:
    return [p.stride() for p in model.parameters()]


@pytest.mark.parametrize("make", KINDS)
def test_weights_get_the_format_and_their_own_strides_back(make: Callable[[], nn.Module]) -> None:
    model = make()
    found, values, weight = strides(model), copy.deepcopy(model.state_dict()), model.weight
    with msctx.context(variable_format_optimize=True) as ctx:
        ctx.watch(model)
        assert model.weight is weight
        assert weight.stride() == favoured(weight)
        assert model.bias.stride() == (1,)
        torch.testing.assert_close(dict(model.state_dict()), dict(values), rtol=0, atol=0)
    assert (strides(model), model.weight) == (found, weight)
    torch.testing.assert_close(dict(model.state_dict()), dict(values), rtol=0, atol=0)


def test_false_makes_them_contiguous_and_unset_leaves_them() -> None:
    model = net().to(memory_format=torch.channels_last)
    found = strides(model)
    with msctx.context(deterministic="ON") as ctx:
        ctx.watch(model)
        assert strides(model) == found
    with msctx.context(session={"variable_format_optimize": False}) as ctx:
        ctx.watch(model)
        assert all(p.is_contiguous() for p in model.parameters())
        with msctx.context(variable_format_optimize=True):
            assert strides(model) == found
        assert all(p.is_contiguous() for p in model.parameters())
    assert strides(model) == found


def state_of(optimizer: torch.optim.Optimizer) -> dict[int, tuple[int, ...]]:
    """The tensors of its state and their strides."""
    found = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
    return {id(value): value.stride() for value in found}


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, 1e-2),
    "foreach": lambda p: torch.optim.Adam(p, 1e-2, foreach=True),
    "fused": lambda p: torch.optim.Adam(p, 1e-2, fused=True),
    "LBFGS": lambda p: torch.optim.LBFGS(p, 0.1, max_iter=3),
}


@pytest.mark.parametrize("keep", [False, True], ids=["new gradients", "kept gradients"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_is_trained_is_the_same_before_inside_and_after(name: str, keep: bool) -> None:
    reference, model = net(), net()
    steps(reference, OPTIMIZERS[name](reference.parameters()), 6, keep=keep)
    found, objects = strides(model), [*model.parameters()]
    optimizer = OPTIMIZERS[name](model.parameters())
    steps(model, optimizer, 2, keep=keep)
    kept = state_of(optimizer)
    with msctx.context(variable_format_optimize=True) as ctx:
        ctx.watch(model)
        steps(model, optimizer, 2, keep=keep)
        assert model[0].weight.stride() == favoured(model[0].weight)
        model(IMAGES).square().mean().backward()  # a gradient that outlives the block
    assert state_of(optimizer) == kept or name == "LBFGS"  # which makes its own anew
    assert strides(model) == found
    assert all(a is b for a, b in zip(model.parameters(), objects, strict=True))
    assert [p.grad.stride() for p in model.parameters()] == found
    steps(model, optimizer, 2, keep=keep)
    for one, other in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-5)
    assert not parameters._hooks


def test_an_optimizer_sees_the_found_strides_of_a_gradient_in_a_bucket() -> None:
    """As in DistributedDataParallel: its memory is not the parameter's to replace."""
    reference, model = net(), net()
    steps(reference, torch.optim.Adam(reference.parameters(), 1e-2, fused=True), 3)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, fused=True)
    with msctx.context(variable_format_optimize=True) as ctx:
        ctx.watch(model)
        weight = model[0].weight
        bucket = torch.zeros(weight.numel() + 1)
        for _ in range(3):
            weight.grad = None
            view = bucket[1:].as_strided(weight.shape, weight.stride(), 1)
            model.zero_grad()
            model(IMAGES).square().mean().backward()
            weight.grad = view.copy_(weight.grad)
            optimizer.step()
            assert weight.grad is view
    torch.testing.assert_close(weight, reference[0].weight, rtol=2e-4, atol=2e-5)


def test_parameters_that_are_replaced_shared_or_not_dense() -> None:
    model = nn.ModuleList([nn.Conv2d(4, 4, 3) for _ in range(5)])
    model[1].weight = model[0].weight  # shared
    whole = torch.randn(4, 4, 3, 6)
    model[2].weight = nn.Parameter(whole[..., ::2])  # with gaps, in somebody's memory
    model[3].weight = nn.Parameter(torch.randn(3, 3, 4, 4).permute(3, 2, 1, 0))  # dense, in an order of its own
    found, old = strides(model), model[4].weight
    with msctx.context(variable_format_optimize=True) as ctx:
        ctx.watch(model)
        assert model[0].weight is model[1].weight
        assert model[0].weight.stride() == model[3].weight.stride() == favoured(model[0].weight)
        assert model[2].weight.stride() == whole[..., ::2].stride()
        model[4].weight = new = nn.Parameter(torch.randn(4, 4, 3, 3))
        model[3].weight.data.mul_(2)
        with torch.no_grad():
            model[0].weight.zero_()
    assert strides(model)[:-2] == found[:-2]
    assert (old.stride(), new.stride()) == (found[-2], (36, 9, 3, 1))
    assert not model[1].weight.any()


def test_what_the_program_lays_itself_inside_stays() -> None:
    model = nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last)
    with msctx.context(variable_format_optimize=False) as ctx:
        ctx.watch(model)
        model.weight.data = mine = torch.zeros(3, 3, 4, 6).permute(3, 2, 0, 1)
    assert model.weight.stride() == mine.stride()


def test_memory_that_fails_leaves_all_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = net(), []
    found = strides(model)

    def fails(*args: Any, **more: Any) -> torch.Tensor:
        calls.append(args)
        if len(calls) == 2:
            raise MemoryError("no memory")
        return memory_of(*args, **more)

    memory_of = parameters.memory_of
    monkeypatch.setattr(parameters, "memory_of", fails)
    with msctx.context() as ctx:
        ctx.watch(model)
        with pytest.raises(MemoryError), msctx.context(variable_format_optimize=True):
            pass
        assert (strides(model), parameters.FORMAT.read()) == (found, None)

"""LossScaling: the gradients of a GradScaler and the same steps left out, in loops that know nothing of it."""

import copy
import warnings

import pytest
import torch
from torch import nn

import msctx
from msctx.amp import watched
from msctx.integrations.loss_scaling import LossScaling

pytestmark = pytest.mark.usefixtures("one_thread")
FP16 = {"precision_mode": "allow_mix_precision_fp16"}
TINY = 2.0**-20
"""A loss so small that its gradients vanish in float16 unless it is scaled."""


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def batch(seed: int = 0) -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))


def loss_of(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return net(x).float().square().mean()


def grads(net: nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in net.parameters()]


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=0.01)


def test_training_is_bit_for_bit_that_of_a_grad_scaler():
    one, other = model(), model()
    options = {"init_scale": 2.0**40, "growth_interval": 3}  # begins with overflows, then grows
    with msctx.context(**FP16) as ctx, warnings.catch_warnings(), watched() as counted:
        warnings.simplefilter("error")
        optimizer, scaler = sgd(one), ctx.grad_scaler(**options)
        for step in range(40):
            optimizer.zero_grad()
            scaler.scale(loss_of(one, batch(step))).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(one.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
        optimizer = sgd(other)
        with LossScaling(ctx, other, optimizer, **options) as scaling:
            for step in range(40):
                optimizer.zero_grad()
                scaling(loss_of(other, batch(step))).backward()
                nn.utils.clip_grad_norm_(other.parameters(), 0.5)
                optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert 0 < scaler.overflow_steps < 40
    assert scaler.get_scale() == scaling.scaler.get_scale()
    assert counted() == {"scaled_steps": 80, "overflow_steps": 2 * scaler.overflow_steps}


def test_gradients_are_true_ones_and_do_not_vanish():
    net, exact = model(), model().double()
    (loss_of(exact, batch().double()) * TINY).backward()
    with msctx.context(**FP16) as ctx:
        with LossScaling(ctx, net, sgd(net)) as scaling:
            scaling(loss_of(net, batch()) * TINY).backward()
        for mine, true in zip(grads(net), grads(exact), strict=True):
            torch.testing.assert_close(mine.double(), true, rtol=2e-2, atol=2e-2 * float(true.abs().max()))
        bare = model()
        (loss_of(bare, batch()) * TINY).backward()
    assert not grads(bare)[0].any()


@pytest.mark.parametrize("options", [{}, {"precision_mode": "allow_mix_precision_bf16"}])
def test_nothing_is_hooked_where_nothing_computes_in_float16(options):
    net = model()
    optimizer = sgd(net)
    with msctx.context(**options) as ctx:
        scaling = LossScaling(ctx, net, optimizer)
        loss = scaling(loss_of(net, batch()))
        assert not loss._backward_hooks
    assert not any(p._backward_hooks for p in net.parameters())
    assert not optimizer._optimizer_step_pre_hooks


def test_everything_is_taken_off_again():
    net = model()
    optimizer = sgd(net)
    with msctx.context(**FP16) as ctx:
        with LossScaling(ctx, net, optimizer) as scaling:
            loss = scaling(loss_of(net, batch()))
            assert all(p._backward_hooks for p in net.parameters())
        loss.backward()  # after it was removed: as if it had never been
        assert grads(net)[0].abs().max() < 10
    assert not any(p._backward_hooks for p in net.parameters())
    assert not optimizer._optimizer_step_pre_hooks


@pytest.mark.parametrize("clip", [nn.utils.clip_grad_value_, nn.utils.clip_grad_norm_])
@pytest.mark.parametrize("with_closure", [False, True])
def test_a_step_that_overflows_is_left_out_however_it_is_clipped(clip, with_closure):
    net = model()
    before, optimizer = copy.deepcopy(net.state_dict()), sgd(net)
    with msctx.context(**FP16) as ctx, LossScaling(ctx, net, optimizer, init_scale=2.0**60) as scaling:

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = scaling(loss_of(net, batch()))
            loss.backward()
            clip(net.parameters(), 1.0)
            return loss

        if with_closure:
            assert optimizer.step(closure) > 0
        else:
            closure()
            optimizer.step()
        assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
        assert not optimizer.state
        assert (scaling.scaler.steps, scaling.scaler.overflow_steps) == (1, 1)
        assert scaling.scaler.get_scale() == 2.0**59
        optimizer.step()  # nobody has scaled a loss for it
    assert scaling.scaler.steps == 1


def test_two_optimizers_are_judged_each_by_its_own_gradients():
    a, b = model(), model()
    first, second = sgd(a), sgd(b)
    with msctx.context(**FP16) as ctx, LossScaling(ctx, nn.ModuleList([a, b]), first, second) as scaling:
        scaling(loss_of(a, batch())).backward()
        scaling(loss_of(b, batch()) * 1e30).backward()
        first.step()
        second.step()
    assert (scaling.scaler.steps, scaling.scaler.overflow_steps) == (2, 1)
    assert not torch.equal(a[0].bias, model()[0].bias)
    assert torch.equal(b[0].bias, model()[0].bias)


def test_parameters_in_float16_are_refused():
    net = model()
    net[2].half()
    with msctx.context(**FP16) as ctx, pytest.raises(ValueError, match=r"parameter 2\.weight is in float16"):
        LossScaling(ctx, net, sgd(net))
    assert not any(p._backward_hooks for p in net.parameters())


def test_what_would_do_nothing_is_an_error_or_a_warning():
    net = model()
    with msctx.context(**FP16) as ctx:
        for wrong in ((), (nn.Linear(1, 1),)):
            with pytest.raises(TypeError, match="LossScaling"):
                LossScaling(ctx, net, *wrong)
        optimizer = sgd(net)
        loss_of(net, batch()).backward()
        with LossScaling(ctx, net, optimizer), pytest.warns(msctx.MsctxWarning, match="float16 that are not scaled"):
            optimizer.step()

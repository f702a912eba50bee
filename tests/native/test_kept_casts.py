"""frozen_weights under a precision policy: casts of weights are kept, as long as the block is open and where no graph is recorded."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from torch.nn import functional as fn

import msctx

pytestmark = [pytest.mark.usefixtures("plain_state", "one_thread")]
BF16 = torch.bfloat16
FROZEN = {"precision_mode": "allow_mix_precision_bf16", "frozen_weights": True}


def cast_by_hand(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return fn.linear(x.to(BF16), layer.weight.detach().to(BF16), layer.bias.detach().to(BF16))


@pytest.fixture
def layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(5, 7)


@pytest.mark.parametrize("grad", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("trainable", [True, False])
def test_a_weight_is_cast_once(layer, grad, trainable):
    layer.requires_grad_(trainable)
    x = torch.randn(3, 5)
    before = cast_by_hand(layer, x)
    with msctx.context(**FROZEN), grad():
        assert torch.equal(layer(x), before)
        layer.weight.data.zero_()  # which frozen_weights promises that nobody does
        assert torch.equal(layer(x), before)
    with msctx.context(**FROZEN), grad():
        assert torch.equal(layer(x), cast_by_hand(layer, x))


def test_it_is_cast_each_time_unless_frozen(layer):
    x = torch.randn(3, 5)
    with msctx.context(precision_mode="allow_mix_precision_bf16"), torch.no_grad():
        layer(x)
        layer.weight.zero_()
        assert torch.equal(layer(x), cast_by_hand(layer, x))
        with msctx.context(frozen_weights=True):
            before = layer(x)
            layer.weight.fill_(1)
            assert torch.equal(layer(x), before)
            with msctx.context(frozen_weights=False):
                assert torch.equal(layer(x), cast_by_hand(layer, x))
        assert torch.equal(layer(x), cast_by_hand(layer, x))


def test_training_records_its_casts(layer):
    x = torch.randn(3, 5)
    with msctx.context(**FROZEN):
        with torch.inference_mode():
            layer(x)
        for _ in range(2):  # what was kept in inference mode is no part of it
            layer.zero_grad()
            layer(x).float().sum().backward()
            assert layer.weight.grad is not None
            assert layer.weight.grad.dtype == torch.float32
            with torch.no_grad():
                layer.weight -= 0.1 * layer.weight.grad
            with torch.enable_grad():
                assert torch.equal(layer(x), cast_by_hand(layer, x))


def test_recorded_graphs_have_the_weight_and_not_its_cast(layer):
    from torch.fx.experimental.proxy_tensor import make_fx

    x = torch.randn(3, 5)
    with msctx.context(**FROZEN), torch.no_grad():
        layer(x)
        traced = torch.jit.trace(layer, x)
        graph = make_fx(lambda w, b: fn.linear(x, w, b))(layer.weight, layer.bias)
    with torch.no_grad():
        layer.weight.mul_(2)
        assert torch.equal(traced(x), cast_by_hand(layer, x))
        assert torch.equal(graph(layer.weight, layer.bias), cast_by_hand(layer, x))


def test_an_optimizer_that_steps_inside_is_seen(layer):
    optimizer, x = torch.optim.SGD(layer.parameters(), 0.5), torch.randn(3, 5)
    with msctx.context(**FROZEN):
        with torch.no_grad():
            layer(x)
        layer(x).float().sum().backward()
        optimizer.step()
        with torch.no_grad():
            assert torch.equal(layer(x), cast_by_hand(layer, x))


def test_only_casts_that_are_made_are_counted(layer):
    with msctx.context(**FROZEN) as ctx, torch.no_grad():
        for _ in range(10):
            layer(torch.randn(3, 5))
    (row,) = (row for row in ctx.precisions() if row.operator == "linear")
    assert (row.calls, row.casts) == (10, 12)


def test_activations_are_no_weights():
    image = torch.randn(3, 5, requires_grad=True)
    with msctx.context(**FROZEN), torch.no_grad():
        for _ in range(2):
            assert torch.equal(fn.linear(image, torch.eye(5)), image.to(BF16))
            image += 1
    with msctx.context(**FROZEN), torch.no_grad():
        x = torch.randn(4, 4)
        for value in (1.0, 2.0):
            x.fill_(value)
            assert torch.equal(x @ x, (x.to(BF16) @ x.to(BF16)))
            assert torch.equal(fn.linear(x, torch.eye(4)), x.to(BF16))


@pytest.mark.full
def test_other_memory_another_shape_and_another_tensor(layer):
    x = torch.randn(3, 5)
    with msctx.context(**FROZEN), torch.no_grad():
        layer(x)
        layer.weight.data = torch.ones(7, 5)
        assert torch.equal(layer(x), cast_by_hand(layer, x))
        layer.weight.data = layer.weight.data[:4]
        layer.bias.data = layer.bias.data[:4]
        assert torch.equal(layer(x), cast_by_hand(layer, x))
        for value in range(50):  # addresses are used again
            other = nn.Linear(5, 7)
            other.weight.fill_(value)
            assert torch.equal(other(x), cast_by_hand(other, x))
            del other
            gc.collect()


def test_a_weight_with_a_tangent_keeps_it(layer):
    """Forward-mode derivatives by a weight that records no gradient."""
    from torch.autograd import forward_ad

    layer.requires_grad_(False)
    x, tangent = torch.randn(3, 5), torch.randn(7, 5)

    def derivative():
        with forward_ad.dual_level():
            weight = forward_ad.make_dual(layer.weight, tangent)
            return forward_ad.unpack_dual(fn.linear(x, weight)).tangent

    with msctx.context(**FROZEN):
        layer(x)  # its cast is kept now
        found = derivative()
    torch.testing.assert_close(found.float(), x @ tangent.t(), rtol=0, atol=0.1)

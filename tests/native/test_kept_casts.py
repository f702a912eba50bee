"""frozen_weights under a precision policy: casts of weights are kept, as long as the block is open and where no graph is recorded."""

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


def test_training_records_its_casts_and_steps_of_an_optimizer_inside_are_seen(layer):
    optimizer, x = torch.optim.SGD(layer.parameters(), 0.5), torch.randn(3, 5)
    with msctx.context(**FROZEN):
        for grad in (torch.inference_mode, torch.no_grad):  # what was kept there is no part of training
            with grad():
                layer(x)
            layer.zero_grad()
            layer(x).float().sum().backward()
            assert layer.weight.grad is not None
            assert layer.weight.grad.dtype == torch.float32
            optimizer.step()
            with torch.no_grad():
                assert torch.equal(layer(x), cast_by_hand(layer, x))
            with torch.enable_grad():
                assert torch.equal(layer(x), cast_by_hand(layer, x))

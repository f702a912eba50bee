"""Whole modules under each mode: recurrent nets, attention, losses train, and give what float32 gives, to the mode's rounding."""

from __future__ import annotations

import pytest
import torch
from recorded import each_mode
from torch import nn

import msctx
from msctx.options.precision_rules import precision_of, text_of

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore:.*without a GradScaler")]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.inner(x, x, x)[0]


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.inner = kind(8, 6, 2, batch_first=True, bidirectional=True)

    def forward(self, x):
        return self.inner(x)[0]


MODULES = {
    "LSTM": lambda: Recurrent(nn.LSTM),
    "GRU": lambda: Recurrent(nn.GRU),
    "RNN": lambda: Recurrent(nn.RNN),
    "attention": Attention,
    "transformer": lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
    "convolutions": lambda: nn.Sequential(
        nn.Unflatten(-1, (4, 2)), nn.Conv2d(5, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.PReLU(8), nn.AvgPool2d(2), nn.Flatten()
    ),
    "instance norm": lambda: nn.Sequential(nn.Conv1d(5, 4, 3), nn.InstanceNorm1d(4, affine=True, track_running_stats=True)),
}


@each_mode
@pytest.mark.parametrize("name", MODULES)
def test_modules_train(mode, name):
    torch.manual_seed(0)
    module, x = MODULES[name](), torch.randn(3, 5, 8)
    if name == "convolutions":
        module = nn.Sequential(nn.Unflatten(2, (4, 2)), *list(module)[1:-1], nn.Flatten())
    truth = module.double()(x.double()).detach()
    module.float()
    precision = precision_of(text_of({"precision_mode": mode}))
    bound = 1e-2 if precision.needs_scaler else 8e-2 if precision.low else 1e-5
    with msctx.context(precision_mode=mode):
        y = module(x)
        torch.nn.functional.mse_loss(y, torch.zeros_like(y)).backward()
    assert float((y.detach() - truth).abs().max() / truth.abs().max()) < bound
    for parameter in module.parameters():
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32
        assert torch.isfinite(parameter.grad).all()


@each_mode
def test_losses(mode):
    logits, target = torch.randn(6, 5, requires_grad=True), torch.arange(6) % 5
    for loss in (
        lambda z: torch.nn.functional.cross_entropy(z, target),
        lambda z: torch.nn.functional.binary_cross_entropy(z.sigmoid(), torch.ones(6, 5)),
        lambda z: torch.nn.functional.huber_loss(z, torch.zeros(6, 5)),
        lambda z: torch.nn.functional.kl_div(z.log_softmax(-1), torch.full((6, 5), 0.2), reduction="batchmean"),
    ):
        with msctx.context(precision_mode=mode):
            value = loss(logits @ torch.eye(5))
            value.backward()
        assert value.dtype == (torch.float16 if mode == "force_fp16" else torch.float32)


def test_sparse_operands_are_computed_as_they_are():
    x = torch.eye(4).to_sparse()
    with msctx.context(precision_mode="allow_mix_precision_bf16"):
        assert torch.sparse.mm(x, torch.ones(4, 4)).dtype == torch.float32
        assert (x @ torch.ones(4, 4)).dtype == torch.float32

"""Weights of compiled convolutions: rules find their modules, and what is kept of them is theirs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fusion_programs import generated
from torch import nn
from torch.nn.utils import parametrize

import msctx

GRAPH = {"mode": "GRAPH_MODE", "jit_syntax_level": "STRICT", "fallback": "silent"}


def net() -> nn.Module:
    """Two layers of one shape: what is copied could be either's."""
    torch.manual_seed(2)
    layers = (nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *(m for layer in layers for m in (layer, nn.BatchNorm2d(8), nn.ReLU())))


def trained(model: nn.Module, x: torch.Tensor, **options: Any) -> tuple[list[torch.Tensor], Any, str]:
    torch._dynamo.reset()
    with msctx.context(**options) as ctx, generated() as code:
        ctx.watch(model)
        model(x).sin().sum().backward()
    found = [p.grad for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return found, ctx.choices(), "".join(code)


@pytest.mark.full
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_rules_find_the_modules_in_training(last: bool) -> None:
    model, x = net(), torch.randn(2, 3, 9, 9)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    rules = "module=1: fprop=reference, dgrad=reference, wgrad=reference; module=*: fprop=gemm, dgrad=algo_1, wgrad=algo_1"
    found, choices, code = trained(model, x, **GRAPH, conv_algo_rules=rules)
    assert "convolution" in code
    others = {"fprop": "gemm", "dgrad": "algo_1", "wgrad": "algo_1"}
    expected = {("0", "fprop"): "gemm", ("0", "wgrad"): "algo_1"}
    expected |= {("1", direction): "reference" for direction in others}
    expected |= {("4", direction): name for direction, name in others.items()}
    assert {(row.module, row.direction): row.ran for row in choices} == expected
    right, _, _ = trained(model, x)
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)


def test_they_do_where_gradients_alone_have_an_algorithm() -> None:
    _, choices, _ = trained(net(), torch.randn(2, 3, 9, 9), **GRAPH, conv_dgrad_algo="algo_1")
    assert {row.module for row in choices} == {"1", "4"}


class Gain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.rand(8, 1, 1, 1) + 0.5)

    def forward(self, weight: torch.Tensor) -> Any:
        return torch.tanh(weight) * self.gain


@pytest.mark.parametrize("algorithm", ["winograd", "normal"])
def test_computed_weights_are_not_frozen(algorithm: str) -> None:
    """Inductor computes them into memory in which another one has been."""
    torch.manual_seed(3)
    layers = [nn.Conv2d(8, 8, 3, padding=1) for _ in range(3)]
    for layer in layers:
        parametrize.register_parametrization(layer, "weight", Gain())
    model, x = nn.Sequential(*layers).eval(), torch.randn(2, 8, 9, 9)
    torch._dynamo.reset()
    with msctx.context(**GRAPH, conv_fprop_algo=algorithm, frozen_weights=True) as ctx, torch.no_grad(), generated() as code:
        ctx.watch(model)
        found = model(x), model(x)
    assert "# reuse" in "".join(code)
    with torch.no_grad():
        torch.testing.assert_close(found, (model(x),) * 2, rtol=1e-4, atol=1e-5)

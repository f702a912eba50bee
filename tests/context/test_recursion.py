"""Contexts near the recursion limit: what is raised is RecursionError, and everything is restored."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import msctx

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore::msctx.MsctxWarning")]
OPTIONS: list[dict[str, Any]] = [
    {"precision_mode": "allow_mix_precision_bf16"},
    {"conv_fprop_algo": "gemm", "max_device_memory": "1GB"},
    {"deterministic": "ON", "max_call_depth": 900},
]


def call_at(depth: int, function: Callable[[], None]) -> None:
    function() if depth == 0 else call_at(depth - 1, function)


def seen() -> dict[str, Any]:
    return {name: value for name, value in msctx.state().items() if not name.startswith("rng")}


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ",".join(options))
def test_entering_and_leaving_at_any_depth(options: dict[str, Any]) -> None:
    def once() -> None:
        with msctx.context(**options):
            pass

    once()
    before, limit, raised = seen(), sys.getrecursionlimit(), 0
    for depth in range(limit - 160, limit, 3):
        try:
            call_at(depth, once)
        except RecursionError:
            raised += 1
        assert seen() == before, depth
    assert sys.getrecursionlimit() == limit
    assert raised, "no depth was near enough"


class Endless(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    @msctx.context(precision_mode="allow_mix_precision_bf16")
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self(x))


def test_endless_recursion_through_a_decorated_method() -> None:
    model, limit, before = Endless(), sys.getrecursionlimit(), seen()
    for padding in range(12):
        with pytest.raises(RecursionError):
            call_at(padding, lambda: model(torch.ones(2, 4)))
        assert seen() == before
    assert sys.getrecursionlimit() == limit

"""Contexts near the recursion limit: what is raised is RecursionError, and everything is restored."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
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


def test_a_limit_that_an_option_sets_is_in_force_at_any_depth() -> None:
    def inside() -> None:
        with msctx.context(max_call_depth=3000, strict=True) as c:
            row = next(row for row in c.plan.rows if row.option == "max_call_depth")
            limits.append((row.assignments["python.recursion_limit"], sys.getrecursionlimit()))
            with msctx.context(max_call_depth=4000):
                limits.append((sys.getrecursionlimit(), sys.getrecursionlimit()))

    limits: list[tuple[Any, int]] = []
    limit = sys.getrecursionlimit()
    for depth in (10, limit // 2 - 100, limit // 2 + 50, limit - 200):
        call_at(depth, inside)
        assert sys.getrecursionlimit() == limit
    assert all(wanted == found for wanted, found in limits), limits
    assert len(limits) == 8


def test_threads_that_need_room_at_once() -> None:
    limit, interval = sys.getrecursionlimit(), sys.getswitchinterval()

    def entering() -> None:
        for _ in range(100):
            with msctx.context(precision_mode="allow_mix_precision_bf16"):  # what each thread may hold at once
                pass

    threads = [threading.Thread(target=call_at, args=(limit * 6 // 10, entering)) for _ in range(3)]
    sys.setswitchinterval(1e-6)
    try:
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    finally:
        sys.setswitchinterval(interval)
    assert sys.getrecursionlimit() == limit


def test_an_endless_recursion_ends_near_the_limit() -> None:
    levels = 0

    def walk() -> None:
        nonlocal levels
        levels += 1
        with msctx.context(deterministic="ON"):
            pass
        walk()

    limit = sys.getrecursionlimit()
    with pytest.raises(RecursionError):
        walk()
    with msctx.context():
        pass
    assert levels < limit
    assert sys.getrecursionlimit() == limit


class Calls:
    """Each level is a call in C beside the frame, which Python 3.11 and older count."""

    def __call__(self, depth: int) -> None:
        if depth:
            self(depth - 1)
            return
        with msctx.context(deterministic="ON"):
            pass


def test_levels_that_count_twice() -> None:
    for depth in range(150, sys.getrecursionlimit() - 100, 4):
        with suppress(RecursionError):
            Calls()(depth)
        assert not torch.are_deterministic_algorithms_enabled(), depth
    with msctx.context():
        pass

"""What a precision policy costs each call: the smallest product outside, under torch's own autocast, and under policies."""

from __future__ import annotations

import statistics
import timeit
from typing import Any


def test_the_smallest_product(benchmark: Any) -> None:
    """In turns, in one thread: microseconds a call, the fastest of each turn, the median over turns."""
    from contextlib import nullcontext

    import torch

    import msctx

    torch.set_num_threads(1)
    x, low = torch.randn(2, 2), torch.randn(2, 2).bfloat16()
    mixed, full = msctx.context(precision_mode="allow_mix_precision_bf16"), msctx.context(precision_mode="force_fp32")

    def microseconds(scope: Any, tensor: torch.Tensor) -> float:
        with scope, torch.no_grad():
            return min(timeit.repeat(lambda: torch.mm(tensor, tensor), number=2000, repeat=3)) / 2000 * 1e6

    before = microseconds(nullcontext(), x)

    def turns() -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for _ in range(7):
            for name, scope, tensor in (
                ("outside", nullcontext(), x),
                ("bf16 outside", nullcontext(), low),
                ("autocast, no cast", torch.autocast("cpu", torch.bfloat16), low),
                ("policy, no cast", mixed, low),
                ("autocast, two casts", torch.autocast("cpu", torch.bfloat16), x),
                ("policy, two casts", mixed, x),
                ("policy that leaves it", full, x),
            ):
                found.setdefault(name, []).append(microseconds(scope, tensor))
        return found

    found = benchmark.pedantic(turns, rounds=1)
    benchmark.extra_info["us"] = {"before any policy": before} | {name: statistics.median(each) for name, each in found.items()}
    assert all(each > 0 for each in benchmark.extra_info["us"].values())


def test_a_weight_of_4_mb(benchmark: Any) -> None:
    """A linear layer of one row, without a graph: torch keeps the cast of a weight as long as its region lasts."""
    import torch

    import msctx

    torch.set_num_threads(1)
    layer, x = torch.nn.Linear(1024, 1024), torch.randn(8, 1024)
    mode = "allow_mix_precision_bf16"

    def microseconds(scope: Any) -> float:
        with scope, torch.no_grad():
            return min(timeit.repeat(lambda: layer(x), number=20, repeat=5)) / 20 * 1e6

    def turns() -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for _ in range(7):
            for name, scope in (
                ("autocast", torch.autocast("cpu", torch.bfloat16)),
                ("policy", msctx.context(precision_mode=mode)),
                ("policy, frozen_weights", msctx.context(precision_mode=mode, frozen_weights=True)),
            ):
                found.setdefault(name, []).append(microseconds(scope))
        return found

    found = benchmark.pedantic(turns, rounds=1)
    benchmark.extra_info["us"] = {name: statistics.median(each) for name, each in found.items()}
    assert all(each > 0 for each in benchmark.extra_info["us"].values())

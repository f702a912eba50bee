"""What the native core costs a program that asks it for nothing, and what a call under a policy costs beside torch's own."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from typing import Any

import pytest

SCRIPT = """
import json, sys, timeit, torch
mode = sys.argv[1]
x, w = torch.randn(1, 4, 8, 8), torch.randn(4, 4, 3, 3)
def call():
    torch.nn.functional.conv2d(x, w)
if mode != "plain":
    import msctx
    with msctx.context(conv_fprop_algo="gemm"):
        call()
torch.set_num_threads(1)
with torch.no_grad():
    timeit.timeit(call, number=2000)
    found = min(timeit.repeat(call, number=2000, repeat=7)) / 2000
print(json.dumps(found))
"""


def seconds(mode: str) -> float:
    done = subprocess.run([sys.executable, "-c", SCRIPT, mode], capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout))


def test_a_convolution_outside_every_context(benchmark: Any) -> None:
    """Processes with and without the library in turns; the smallest convolution, so that what the hook costs is seen."""
    pairs = benchmark.pedantic(lambda: [(seconds("plain"), seconds("loaded")) for _ in range(5)], rounds=1)
    plain, loaded = (statistics.median(pair[i] for pair in pairs) for i in (0, 1))
    benchmark.extra_info.update(plain_us=plain * 1e6, loaded_us=loaded * 1e6)
    assert plain > 0
    assert loaded > 0


@pytest.mark.parametrize("algorithm", ["gemm", "implicit_gemm", "winograd"])
def test_the_smallest_convolution_under_a_policy(benchmark: Any, algorithm: str) -> None:
    import torch

    import msctx

    x, w = torch.randn(1, 4, 8, 8), torch.randn(4, 4, 3, 3)
    with msctx.context(conv_fprop_algo=algorithm), torch.no_grad():
        benchmark(torch.nn.functional.conv2d, x, w)

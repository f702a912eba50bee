"""What msctx itself costs: importing it, and entering and leaving a context. Run with `make bench`."""

from __future__ import annotations

import statistics
import subprocess
import sys
import timeit

import pytest
import torch

import msctx

TEN = {
    "deterministic": "ON",
    "deterministic_warn_only": False,
    "fill_uninitialized_memory": True,
    "runtime_num_threads": 2,
    "pynative_synchronize": True,
    "max_call_depth": 500,
    "device_target": "CPU",
    "device_id": 0,
    "default_device": True,
    "strict": False,
}


@pytest.mark.benchmark(group="context")
def test_enter_and_leave_with_ten_options(benchmark):
    assert len(TEN) == 10

    def once() -> None:
        with msctx.context(**TEN):
            pass

    before = msctx.state()
    benchmark(once)
    changed = msctx.diff(before, msctx.state())
    assert not {k for k in changed if not k.startswith("rng.")}


@pytest.mark.benchmark(group="context")
def test_the_same_with_a_seed(benchmark):
    def once() -> None:
        with msctx.context(**TEN, seed=0):
            pass

    benchmark.extra_info["torch_manual_seed_us"] = min(timeit.repeat(lambda: torch.manual_seed(0), number=100, repeat=5)) * 1e4
    benchmark(once)


@pytest.mark.benchmark(group="context")
def test_enter_and_leave_with_nothing_set(benchmark):
    def once() -> None:
        with msctx.context():
            pass

    benchmark(once)


@pytest.mark.benchmark(group="context")
def test_call_of_a_decorated_function(benchmark):
    @msctx.context(deterministic="ON")
    def once() -> None:
        pass

    benchmark(once)


CONVS = {"conv_fprop_algo": "gemm", "conv_dgrad_algo": "algo_1", "conv_wgrad_algo": "algo_1", "conv_workspace_limit": "1GB"}


def _problems(count: int) -> None:
    weight = torch.ones(1, 1, 1, 1)
    with torch.no_grad(), msctx.context(conv_fprop_algo="direct"):
        for width in range(1, count + 1):
            torch.conv2d(torch.ones(1, 1, 1, width), weight)


@pytest.mark.benchmark(group="contexts of convolutions")
@pytest.mark.parametrize("process", ["young", "20,000 problems", "10,000 contexts", "1,000 watched modules", "inside another"])
def test_enter_and_leave_with_algorithms(benchmark, process):
    """What is entered costs the same whatever the process has done before: the cases run in this order, in one process."""

    def once() -> None:
        with msctx.context(**CONVS):
            pass

    once()
    watched = torch.nn.ModuleList(torch.nn.Conv2d(1, 1, 3) for _ in range(1000 if process == "1,000 watched modules" else 0))
    if process == "20,000 problems":
        _problems(20_000)
    elif process == "10,000 contexts":
        for _ in range(10_000):
            once()
    elif watched:
        msctx.context(**CONVS).watch(watched)
    if process == "inside another":
        with msctx.context(conv_fprop_algo="direct", thread_invariant=True):
            benchmark(once)
    else:
        benchmark(once)


def _import_ms(modules: str) -> float:
    code = f"import time; t = time.perf_counter(); import {modules}; print((time.perf_counter() - t) * 1e3)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def test_import(benchmark):
    """`import torch, msctx` against `import torch`, interleaved; the medians and their difference stand in extra_info."""
    alone, both = [], []
    for _ in range(9):
        alone.append(_import_ms("torch"))
        both.append(_import_ms("torch, msctx"))
    torch_ms, both_ms = statistics.median(alone), statistics.median(both)
    benchmark.extra_info.update(torch_ms=torch_ms, with_msctx_ms=both_ms)
    code = "import torch, time; t = time.perf_counter(); import msctx; print((time.perf_counter() - t) * 1e3)"
    after = [float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout) for _ in range(9)]
    benchmark.extra_info["msctx_after_torch_ms"] = statistics.median(after)
    benchmark.pedantic(lambda: None, rounds=1)

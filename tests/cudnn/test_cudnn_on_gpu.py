"""cuDNN itself, on a GPU: what was named runs, right, in every direction, dtype and layout; graphs, streams, caps, compiled code."""

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.nn import functional

import msctx
from msctx.native import core
from msctx.switches import torch_cuda

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.usefixtures("torch_as_found"),
]
ALGORITHMS = {
    "fprop": ["implicit_gemm", "implicit_precomp_gemm", "gemm", "direct", "fft", "fft_tiling", "winograd", "winograd_nonfused"],
    "dgrad": ["algo_0", "algo_1", "fft", "fft_tiling", "winograd", "winograd_nonfused"],
    "wgrad": ["algo_0", "algo_1", "algo_3", "fft", "fft_tiling", "winograd_nonfused"],
}
ALL = [(direction, name) for direction, names in ALGORITHMS.items() for name in names]
BOUNDS = {torch.float64: 1e-11, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}
"""Of |error| in units of the largest result; cuDNN states none: those of Winograd's transforms in the dtype."""
FLOAT = {
    "fprop": {"implicit_gemm", "implicit_precomp_gemm", "gemm", "fft", "fft_tiling", "winograd_nonfused"},
    "dgrad": {"algo_0", "algo_1", "fft", "fft_tiling", "winograd_nonfused"},
    "wgrad": {"algo_0", "algo_1", "algo_3", "fft", "winograd_nonfused"},
}
DOUBLE = {"fprop": {"implicit_gemm", "implicit_precomp_gemm"}, "dgrad": {"algo_0", "algo_1"}, "wgrad": {"algo_0", "algo_1"}}
HALF = {"fprop": {"implicit_precomp_gemm"}, "dgrad": {"algo_1"}, "wgrad": {"algo_1"}}
MUST_RUN = {
    (torch.float32, False): FLOAT,
    **{(torch.float64, last): DOUBLE for last in (False, True)},
    **dict.fromkeys(itertools.product((torch.float16, torch.bfloat16), (False, True)), HALF),
}
"""What cuDNN's documentation promises of the problem of ``tensors()`` on every GPU from A100 on, by dtype and by whether channels are
last. Not the fused Winograd, which Hopper and its successors do not have."""


@pytest.fixture(autouse=True)
def without_tf32() -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def compute(x: torch.Tensor, w: torch.Tensor, **more: Any) -> dict[str, torch.Tensor]:
    x, w = (t.detach().requires_grad_() for t in (x, w))
    y = functional.conv2d(x, w, **more)
    y.square().sum().backward()
    assert x.grad is not None
    assert w.grad is not None
    return {"fprop": y.detach(), "dgrad": x.grad, "wgrad": w.grad}


def tensors(dtype: torch.dtype = torch.float32, last: bool = False, window: int = 3) -> list[torch.Tensor]:
    torch.manual_seed(0)
    layout = torch.channels_last if last else torch.contiguous_format
    made = torch.randn(4, 16, 27, 25), torch.randn(32, 16, window, window)
    return [t.to("cuda", dtype).contiguous(memory_format=layout) for t in made]


@pytest.mark.parametrize("last", [False, True], ids=["channels_first", "channels_last"])
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize(("direction", "algorithm"), ALL)
def test_what_was_named_runs_and_is_right(direction: str, algorithm: str, dtype: torch.dtype, last: bool) -> None:
    x, w = tensors(dtype, last)
    with msctx.context(**{f"conv_{direction}_algo": algorithm, "fallback": "silent"}) as ctx:  # type: ignore[arg-type]
        found = compute(x, w, padding=1)
    exact = compute(x.cpu().double(), w.cpu().double(), padding=1)
    for name, truth in exact.items():
        assert (found[name].cpu().double() - truth).abs().max() <= BOUNDS[dtype] * truth.abs().max(), name
    (row,) = (row for row in ctx.choices() if row.direction == direction)
    assert row.requested == algorithm
    if algorithm in MUST_RUN.get((dtype, last), {}).get(direction, ()):
        assert (row.ran, row.provider) == (algorithm, "cudnn"), row.reasons
    elif algorithm == "direct":
        assert "depthwise convolutions only" in row.reasons[0]
    else:
        assert row.ran == algorithm or row.reasons, "what did not run says why"


def test_max_device_memory_leaves_a_large_workspace_out_and_the_result_is_right() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(16, 64, 56, 56, device="cuda"), torch.randn(64, 64, 5, 5, device="cuda")
    exact = functional.conv2d(x.cpu().double(), w.cpu().double())
    with msctx.context(conv_fprop_algo="fft", fallback="error") as ctx:
        result = functional.conv2d(x, w).nbytes
    workspace = ctx.choices()[0].workspace
    assert workspace > 32 << 20, "else it would be lost among what the allocator rounds up"
    torch.cuda.empty_cache()
    held = torch.cuda.memory_reserved() + (torch_cuda.overhead(torch.cuda.current_device()) or 0)
    cap = held + result + workspace // 2
    with msctx.context(max_device_memory=f"{cap >> 20}MB", conv_fprop_algo="fft", fallback="silent") as ctx:
        torch.cuda.reset_peak_memory_stats()
        found = functional.conv2d(x, w)
        given = torch.cuda.get_per_process_memory_fraction() * torch.cuda.get_device_properties(0).total_memory
        assert torch.cuda.max_memory_reserved() <= given < held + workspace
    assert (found.cpu().double() - exact).abs().max() <= 1e-4 * exact.abs().max()
    assert all(row.ran != "fft" for row in ctx.choices() if row.calls)
    assert any("there was no memory for its workspace" in reason for row in ctx.choices() for reason in row.reasons)


def test_graphs_record_what_was_chosen_and_measure_nothing() -> None:
    x, w = tensors()
    for algorithm in ("implicit_precomp_gemm", "performance"):
        with msctx.context(conv_fprop_algo=algorithm):
            functional.conv2d(x, w)
            graph, before = torch.cuda.CUDAGraph(), core.loaded().c.msctx_measurements()
            with torch.cuda.graph(graph):
                y = functional.conv2d(x, w)
            assert core.loaded().c.msctx_measurements() == before
            x.copy_(torch.randn_like(x))
            graph.replay()
            exact = functional.conv2d(x.cpu().double(), w.cpu().double())
            assert (y.cpu().double() - exact).abs().max() <= 1e-4 * exact.abs().max()


OF_THREADS = {
    (32, 16, 3, 3): "implicit_precomp_gemm",
    (24, 16, 5, 5): "fft",
    (24, 16, 3, 3): "winograd_nonfused",
    (16, 1, 3, 3): "direct",
}
"""Weights, and what computes with them: several have a workspace, the last is a kernel of our own."""


def test_streams_and_threads_keep_their_order() -> None:
    """Each thread has a stream, on which inputs come late: who computed on another stream would read the one before."""
    torch.manual_seed(0)
    times, start = 5, threading.Barrier(2 * len(OF_THREADS))
    inputs = [torch.randn(4, 16, 27, 25, device="cuda") for _ in range(times)]
    weights = {shape: torch.randn(shape, device="cuda") for shape in OF_THREADS}
    torch.cuda.synchronize()

    def work(shape: tuple[int, ...]) -> list[torch.Tensor]:
        stream, found = torch.cuda.Stream(), []
        with torch.cuda.stream(stream):
            x = torch.zeros_like(inputs[0])
            start.wait()
            for late in inputs:
                torch.cuda._sleep(2_000_000)  # about a millisecond
                x.copy_(late)
                found.append(functional.conv2d(x, weights[shape], padding=1, groups=16 // shape[1]))
        stream.synchronize()
        return [one.cpu() for one in found]

    rules = "; ".join(f"weight={'x'.join(map(str, shape))}: fprop={name}" for shape, name in OF_THREADS.items())
    with msctx.context(conv_algo_rules=rules, fallback="error") as ctx, ThreadPoolExecutor(2 * len(OF_THREADS)) as pool:
        shapes = [*OF_THREADS] * 2
        results = list(pool.map(msctx.current().bind(work), shapes))
    for shape, found in zip(shapes, results, strict=True):
        for x, one in zip(inputs, found, strict=True):
            exact = functional.conv2d(x.cpu().double(), weights[shape].cpu().double(), padding=1, groups=16 // shape[1])
            assert (one.double() - exact).abs().max() <= 1e-4 * exact.abs().max(), OF_THREADS[shape]
    assert {row.problem.weight: (row.ran, row.calls) for row in ctx.choices()} == {
        shape: (name, 2 * times) for shape, name in OF_THREADS.items()
    }


def test_compiled_code_and_autocast_go_the_same_way() -> None:
    x, w = tensors()
    compiled = torch.compile(lambda x, w: functional.conv2d(x, w).relu())
    with msctx.context(conv_fprop_algo="implicit_gemm") as ctx:
        compiled(x, w)
        with torch.autocast("cuda", torch.bfloat16):
            functional.conv2d(x, w)
    assert {(row.ran, row.problem.dtype) for row in ctx.choices()} == {
        ("implicit_gemm", "float32"),
        ("implicit_gemm", "bfloat16"),
    }

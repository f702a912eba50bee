"""cuDNN itself, on a GPU: what was named runs, right, in every direction, dtype and layout; graphs, streams, caps, compiled code."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional

import msctx

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
KERNELS = {
    "fft": "fft",
    "fft_tiling": "fft",
    "winograd": "winograd",
    "winograd_nonfused": "[wW]inograd",
    "gemm": "im2col|explicit_convolve|gemm",
    "implicit_gemm": "implicit",
}
"""Families → what is in the names of the kernels that run."""


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
    assert row.asked == algorithm
    assert row.ran == algorithm or row.reasons, "what did not run says why"


@pytest.mark.parametrize(("direction", "algorithm"), [one for one in ALL if one[1] in KERNELS])
def test_the_kernel_that_ran_is_of_the_family(direction: str, algorithm: str) -> None:
    x, w = tensors()
    with msctx.context(**{f"conv_{direction}_algo": algorithm, "fallback": "silent"}) as ctx:  # type: ignore[arg-type]
        compute(x, w, padding=1)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            compute(x, w, padding=1)
    (row,) = (row for row in ctx.choices() if row.direction == direction)
    if row.ran != algorithm:
        pytest.skip(f"not supported here: {row.reasons[0]}")
    names = [event.name for event in profile.events()]
    assert any(re.search(KERNELS[algorithm], name) for name in names), names


@pytest.mark.parametrize("last", [False, True], ids=["channels_first", "channels_last"])
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_direct_is_our_own_kernel_where_each_channel_is_for_itself(dtype: torch.dtype, last: bool) -> None:
    torch.manual_seed(0)
    layout = torch.channels_last if last else torch.contiguous_format
    x, w = torch.randn(4, 16, 27, 25), torch.randn(32, 1, 5, 5)
    x, w = (t.to("cuda", dtype).contiguous(memory_format=layout) for t in (x, w))
    with msctx.context(conv_fprop_algo="direct", fallback="error") as ctx:
        found = compute(x, w, padding=2, groups=16)
    exact = compute(x.cpu().double(), w.cpu().double(), padding=2, groups=16)
    assert (found["fprop"].cpu().double() - exact["fprop"]).abs().max() <= BOUNDS[dtype] * exact["fprop"].abs().max()
    (row,) = ctx.choices()
    assert (row.ran, row.provider) == ("direct", "msctx")


def test_our_own_kernel_is_loaded_while_a_graph_is_recorded() -> None:
    x, w = (torch.randn(shape).to("cuda", torch.bfloat16) for shape in ((2, 8, 19, 17), (8, 1, 3, 2)))
    with msctx.context(conv_fprop_algo="direct", fallback="error"):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = functional.conv2d(x, w, groups=8)
        x.copy_(torch.randn_like(x))
        graph.replay()
    exact = functional.conv2d(x.cpu().double(), w.cpu().double(), groups=8)
    assert (y.cpu().double() - exact).abs().max() <= BOUNDS[torch.bfloat16] * exact.abs().max()


def test_the_workspace_is_in_the_allocators_statistics_and_its_limit_holds() -> None:
    x, w = tensors(window=5)
    with msctx.context(conv_fprop_algo="fft", fallback="silent") as ctx:
        functional.conv2d(x, w)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        y = functional.conv2d(x, w)
        (row,) = ctx.choices()
        if row.ran != "fft":
            pytest.skip(row.reasons[0])
        assert torch.cuda.max_memory_allocated() - before >= row.workspace + y.nbytes
    with msctx.context(conv_fprop_algo="fft", conv_workspace_limit=row.workspace - 1, fallback="silent") as ctx:
        functional.conv2d(x, w)
    assert "conv_workspace_limit" in ctx.choices()[0].reasons[0]


def test_a_cap_leaves_the_workspace_out_and_the_result_is_right() -> None:
    x, w = tensors(window=5)
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (2 << 20)) / total)
    try:
        with msctx.context(conv_fprop_algo="fft", fallback="silent"):
            found = functional.conv2d(x, w)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    exact = functional.conv2d(x.cpu().double(), w.cpu().double())
    assert (found.cpu().double() - exact).abs().max() <= 1e-4 * exact.abs().max()


def test_graphs_record_what_was_chosen_and_measure_nothing() -> None:
    x, w = tensors()
    for algorithm in ("implicit_precomp_gemm", "performance"):
        with msctx.context(conv_fprop_algo=algorithm):
            functional.conv2d(x, w)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = functional.conv2d(x, w)
            x.copy_(torch.randn_like(x))
            graph.replay()
            exact = functional.conv2d(x.cpu().double(), w.cpu().double())
            assert (y.cpu().double() - exact).abs().max() <= 1e-4 * exact.abs().max()


def test_streams_and_threads_keep_their_order() -> None:
    x, w = tensors()
    exact = functional.conv2d(x.cpu().double(), w.cpu().double())
    with msctx.context(conv_fprop_algo="gemm"):
        streams = [torch.cuda.Stream() for _ in range(4)]
        found = []
        for stream in streams * 3:
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                found.append(functional.conv2d(x, w))
        torch.cuda.synchronize()
    assert all((one.cpu().double() - exact).abs().max() <= 1e-4 * exact.abs().max() for one in found)


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


def test_max_autotune_leaves_convolutions_to_the_hook() -> None:
    last = {"memory_format": torch.channels_last}
    model = torch.nn.Sequential(torch.nn.Conv2d(16, 32, 1), torch.nn.Conv2d(32, 8, 3)).to("cuda", torch.half).to(**last)
    x = torch.randn(4, 16, 27, 25, device="cuda", dtype=torch.half).to(**last)
    names = dict.fromkeys(("conv_dgrad_algo", "conv_wgrad_algo"), "algo_1")
    with msctx.context(conv_fprop_algo="implicit_precomp_gemm", **names) as ctx:  # type: ignore[arg-type]
        torch.compile(model, mode="max-autotune-no-cudagraphs")(x).sum().backward()
    ran = {direction: sum(row.calls for row in ctx.choices() if row.direction == direction) for direction in ALGORITHMS}
    assert ran == {"fprop": 2, "dgrad": 1, "wgrad": 2}, ctx.choices()


@pytest.mark.parametrize(
    "call",
    [
        lambda x, w: torch.cudnn_convolution(x, w, [1, 1], [1, 1], [1, 1], 1, False, False, False),
        lambda x, w: torch.cudnn_convolution_transpose(x, w, [1, 1], [0, 0], [1, 1], [1, 1], 1, False, False, False),
        lambda x, w: torch.cudnn_convolution_relu(x, w, None, [1, 1], [1, 1], [1, 1], 1),
    ],
    ids=["plain", "transposed", "relu"],
)
def test_operators_past_the_hook_are_counted_and_refused(call: Callable[..., torch.Tensor]) -> None:
    x, w = torch.randn(2, 8, 9, 9, device="cuda"), torch.randn(8, 8, 3, 3, device="cuda")
    own = call(x, w)
    with msctx.context(conv_fprop_algo="implicit_gemm", fallback="silent") as ctx:
        assert torch.equal(call(x, w), own)
    assert [(row.ran, row.calls) for row in ctx.choices()] == [("torch", 1)]
    with (
        msctx.context(conv_fprop_algo="implicit_gemm", fallback="error"),
        pytest.raises(RuntimeError, match="cudnn_convolution"),
    ):
        call(x, w)


def test_gradients_of_gradients() -> None:
    x, w = (
        t.double().requires_grad_() for t in (torch.randn(1, 2, 5, 5, device="cuda"), torch.randn(2, 2, 3, 3, device="cuda"))
    )
    with msctx.context(conv_fprop_algo="implicit_gemm", conv_dgrad_algo="algo_1", conv_wgrad_algo="algo_1"):
        assert torch.autograd.gradcheck(functional.conv2d, (x, w))
        assert torch.autograd.gradgradcheck(functional.conv2d, (x, w))


def test_others_may_still_use_torchs_flags() -> None:
    x, w = tensors()
    with (
        msctx.context(
            conv_fprop_algo="implicit_precomp_gemm", conv_allow_tf32=True, matmul_allow_tf32=True, deterministic="ON"
        ),
        torch.backends.cudnn.flags(enabled=True, benchmark=False),
    ):
        functional.conv2d(x, w)
    with torch.backends.cudnn.flags(enabled=True):
        functional.conv2d(x, w)

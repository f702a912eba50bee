"""Depthwise convolutions of CUDA tensors by our own kernels: the real hook, rows, plans and launches; the kernels are emulated."""

import ctypes
import textwrap
from collections.abc import Callable

import pytest

from msctx.native import core
from msctx.native.cuda import depthwise_launches

Run = Callable[[str], str]
START = """
from standin_driver import *
driver = start_driver()
"""


@pytest.fixture
def with_kernels(asking: Run) -> Run:
    def run(code: str) -> str:
        return asking(START + textwrap.dedent(code))

    return run


def test_the_core_and_python_mean_the_same_bytes() -> None:
    library = core.load().c
    assert library.msctx_cuda_plan_size() == ctypes.sizeof(depthwise_launches.CudaPlan)
    assert library.msctx_conv_problem_size() == ctypes.sizeof(depthwise_launches.CConvProblem)


@pytest.mark.full
def test_direct_is_our_own_kernel_in_every_dtype_and_layout(with_kernels: Run) -> None:
    with_kernels("""
    ask(conv_fprop_algo="direct", fallback="error")
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        for last in (False, True):
            x, w, b = torch.randn(2, 6, 9, 8, dtype=dtype), torch.randn(12, 1, 3, 3, dtype=dtype), torch.randn(12, dtype=dtype)
            if last:
                x, w = (t.contiguous(memory_format=torch.channels_last) for t in (x, w))
            before = since()
            log(cudnn), driver_log(driver)
            found = check(x, w, b, groups=6, padding=1, stride=2)
            assert not log(cudnn)
            (line,) = (line for line in driver_log(driver) if line != "load")
            layout = "channels_last" if last and dtype != torch.float64 else "nchw"
            assert line.startswith("depthwise_fprop_") and layout in line, line
            (row,) = rows(before)
            assert (row.requested, row.ran, row.provider, row.calls) == ("direct", "direct", "msctx", 1), row
            if layout == "channels_last":
                assert found[0].is_contiguous(memory_format=torch.channels_last)
    """)


@pytest.mark.full
def test_any_geometry(with_kernels: Run) -> None:
    with_kernels("""
    ask(conv_fprop_algo="direct", fallback="error")
    check(torch.randn(3, 5, 17), torch.randn(10, 1, 4), torch.randn(10), groups=5, stride=3, padding=2, dilation=2)
    check(torch.randn(2, 4, 20, 18), torch.randn(4, 1, 9, 9), groups=4, padding=4)
    check(torch.randn(2, 4, 9, 8), torch.randn(4, 1, 7, 7), groups=4, padding=3)
    check(torch.randn(0, 4, 9, 8), torch.randn(4, 1, 3, 3), groups=4)
    check(torch.randn(2, 9, 8, 4).permute(0, 3, 1, 2)[:, :, ::2], torch.randn(8, 1, 3, 3)[::2], groups=4)
    check(torch.randn(2, 4, 5, 6), torch.randn(4, 1, 3, 3), torch.randn(4), transposed=True, groups=4, stride=2, output_padding=1)
    assert all((row.ran, row.provider) == ("direct", "msctx") for row in rows() if row.direction == "fprop"), rows()
    """)


def test_what_is_not_depthwise_is_refused_with_the_reason(with_kernels: Run) -> None:
    with_kernels("""
    ask(conv_fprop_algo="direct", fallback="error")
    for x, w, more, reason in [
        (torch.randn(1, 4, 5, 5), torch.randn(4, 2, 3, 3), {"groups": 2}, "for CUDA computes depthwise convolutions only"),
        (torch.randn(1, 2, 5, 5, 5), torch.randn(2, 1, 3, 3, 3), {"groups": 2}, "it computes no 3-D convolutions"),
        (
            torch.randn(1, 2, 5, 5),
            torch.randn(2, 1, 3, 3),
            {"groups": 2, "dilation": 3, "output_padding": 2, "transposed": True},
            "its output_padding is larger than the rest that the stride leaves",
        ),
    ]:
        assert reason in refused(lambda: compute(*on_far(x, w), **more))
    assert not [line for line in driver_log(driver) if "load" in line], "nothing is loaded for what does not run"
    """)


def test_performance_measures_them_in_every_direction(measuring: Run) -> None:
    code = """
    x, w = torch.randn(2, 6, 9, 8), torch.randn(6, 1, 3, 3)
    for direction in ("fprop", "dgrad", "wgrad"):
        ask(**{f"conv_{direction}_algo": "performance"}, tuning_file=folder + "/tuning.json")
        driver_log(driver)
        check(x, w, groups=6, padding=1)
        assert any(line.startswith(f"depthwise_{direction}") for line in driver_log(driver)), rows()
        (row,) = (row for row in rows() if row.direction == direction)
        assert any(text.startswith("direct") for text in (row.ran, *row.reasons)), row
        ask(**{f"conv_{direction}_algo": "normal"})
        driver_log(driver)
        check(x, w, groups=6, padding=1)
        assert not driver_log(driver), "nothing is known of their speed"
    """
    measuring(START + textwrap.dedent(code))


def test_modules_are_loaded_once_and_run_on_the_current_stream(with_kernels: Run) -> None:
    with_kernels("""
    ask(conv_fprop_algo="direct")
    x, w = on_far(torch.randn(2, 6, 9, 8), torch.randn(6, 1, 3, 3))
    for _ in range(3):
        torch.nn.functional.conv2d(x, w, groups=6)
    lines = driver_log(driver)
    assert lines == ["load", *["depthwise_fprop_f32_nchw_3x3_s1 stream 0"] * 3], lines
    stream = torch.far.Stream()
    with torch.far.stream(stream):
        torch.nn.functional.conv2d(x, w, groups=6)
    assert driver_log(driver) == [f"depthwise_fprop_f32_nchw_3x3_s1 stream {stream.stream_id}"]
    """)


def test_a_launch_that_fails_falls_back_and_is_not_tried_again(with_kernels: Run) -> None:
    with_kernels("""
    ask(conv_fprop_algo="direct", fallback="silent")
    x, w = torch.randn(2, 6, 9, 8), torch.randn(6, 1, 3, 3)
    driver.driver_break(0)
    check(x, w, groups=6)
    check(x, w, groups=6)
    assert len([line for line in driver_log(driver) if "depthwise" in line]) == 1
    assert any("the driver refuses to launch it: CUresult 719" in reason for row in rows() for reason in row.reasons), rows()
    """)


def test_without_a_compiler_the_reason_is_the_compilers_and_cut_between_characters(with_kernels: Run) -> None:
    with_kernels("""
    from msctx.errors import NativeError
    from msctx.native.cuda import compiled_kernels, depthwise_launches

    def none(module, arch):
        raise NativeError("no compiler for CUDA kernels: a" + "é" * 400)

    compiled_kernels.cubin = none
    ask(conv_fprop_algo="direct", fallback="error")
    error = refused(lambda: check(torch.randn(2, 6, 9, 8), torch.randn(6, 1, 3, 3), groups=6))
    assert "direct: no compiler for CUDA kernels: aééé" in error, error
    """)

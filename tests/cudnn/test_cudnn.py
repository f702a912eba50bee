"""Exactly the cuDNN algorithm that was requested: the real hook, policy and descriptors against a stand-in for cuDNN."""

from collections.abc import Callable

import pytest
import torch

Run = Callable[[str], str]


@pytest.mark.full
def test_every_algorithm_in_every_direction_dtype_and_layout(asking: Run) -> None:
    """What ran is what was named, wherever cuDNN supports it; elsewhere it is refused, and the result is right all the same."""
    asking("""
    from msctx.options import OPTIONS
    seen = set()
    for direction in ("fprop", "dgrad", "wgrad"):
        for algorithm in OPTIONS[f"conv_{direction}_algo"].kind.choices:
            if algorithm in ("normal", "performance", "reference"):
                continue
            ask(**{f"conv_{direction}_algo": algorithm}, fallback="silent")
            for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
                for last in (False, True):
                    x, w = torch.randn(2, 4, 7, 9), torch.randn(6, 4, 3, 3)
                    if last:
                        x, w = (t.contiguous(memory_format=torch.channels_last) for t in (x, w))
                    before = since()
                    log(cudnn)
                    y, gx, gw = check(x.to(dtype), w.to(dtype), padding=1)
                    ran = log(cudnn)
                    (row,) = (row for row in rows(before) if row.direction == direction)
                    assert row.requested == algorithm
                    word = {"fprop": "forward", "dgrad": "backward_data", "wgrad": "backward_filter"}[direction]
                    if row.ran == algorithm:
                        layout = "nhwc" if last and dtype != torch.float64 else "nchw"
                        math = "tensor_op" if dtype in (torch.float16, torch.bfloat16) else "fma"
                        assert ran == [f"{word} {algorithm} {math} {layout}"], ran
                        assert (row.provider, row.problem.layout == "channels_last") == ("cudnn", layout == "nhwc")
                        seen.add((direction, algorithm))
                    else:
                        assert not any(f" {algorithm} " in line for line in ran)
                        why = "depthwise convolutions only" if algorithm == "direct" else "cuDNN does not support it"
                        assert why in row.reasons[0]
                    if last and dtype != torch.float64:
                        result = {"fprop": y, "dgrad": gx, "wgrad": gw}[direction]
                        assert result.is_contiguous(memory_format=torch.channels_last)
    missing = {(d, a) for d in ("fprop", "dgrad", "wgrad") for a in OPTIONS[f"conv_{d}_algo"].kind.choices} - seen
    assert {(d, a) for d, a in missing if a not in ("normal", "performance", "reference")} == {("fprop", "direct")}
    """)


@pytest.mark.full
def test_any_geometry(asking: Run) -> None:
    asking("""
    ask(conv_fprop_algo="implicit_gemm", conv_dgrad_algo="algo_1", conv_wgrad_algo="algo_1", fallback="error")
    check(torch.randn(2, 4, 9, 8), torch.randn(6, 2, 3, 5), torch.randn(6), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2)
    check(torch.randn(3, 5, 11), torch.randn(4, 5, 3), torch.randn(4), stride=2, padding=1)
    check(torch.randn(1, 2, 5, 6, 4), torch.randn(3, 2, 3, 2, 3), padding=1)
    last = torch.channels_last_3d
    found = check(*(t.contiguous(memory_format=last) for t in (torch.randn(2, 2, 5, 6, 4), torch.randn(3, 2, 3, 2, 3))))
    assert found[0].is_contiguous(memory_format=last)
    check(torch.randn(2, 9, 8, 4).permute(0, 3, 1, 2)[:, :, ::2], torch.randn(8, 4, 3, 3)[::2])
    check(torch.randn(0, 4, 9, 8), torch.randn(6, 4, 3, 3))
    for layout in (torch.contiguous_format, torch.channels_last):  # elements are what 31 bits must count
        many = (torch.randn(shape).contiguous(memory_format=layout) for shape in ((1, 2048, 23, 23), (1, 2048, 1, 1)))
        torch.nn.functional.conv2d(*on_far(*many))
    assert all(row.provider == "cudnn" for row in rows()), rows()
    assert not own_calls or set(own_calls) == {"backward"}, "the gradient of a bias is torch's own"
    """)


def test_transposed_convolutions_are_gradients(asking: Run) -> None:
    asking("""
    ask(conv_fprop_algo="fft_tiling", conv_dgrad_algo="winograd_nonfused", conv_wgrad_algo="algo_1", fallback="error")
    log(cudnn)
    check(torch.randn(2, 4, 7, 6), torch.randn(4, 3, 3, 3), torch.randn(3), transposed=True, padding=1)
    ran = [line.split()[:2] for line in log(cudnn)]
    assert ran == [["backward_data", "fft_tiling"], ["forward", "winograd_nonfused"], ["backward_filter", "algo_1"]]
    ask(conv_wgrad_algo="algo_1")
    check(torch.randn(2, 4, 5, 6), torch.randn(4, 3, 3, 3), transposed=True, stride=2, output_padding=1, groups=2)
    ask(conv_fprop_algo="gemm", fallback="error")
    error = refused(lambda: check(torch.randn(2, 4, 5, 6), torch.randn(4, 3, 3, 3), transposed=True))
    assert "cuDNN computes a transposed convolution as a gradient, which has no algorithm of this name" in error, error
    ask()  # without a policy torch computes
    log(cudnn)
    own_calls.clear()
    check(torch.randn(2, 4, 7, 9), torch.randn(6, 4, 3, 3))
    assert (log(cudnn), own_calls) == ([], ["forward", "backward"])
    """)


def test_what_is_not_supported_falls_back_as_requested(asking: Run) -> None:
    asking("""
    x, w = torch.randn(2, 4, 7, 9), torch.randn(6, 4, 2, 2)
    ask(conv_fprop_algo="winograd")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check(x, w)
        check(x, w)
    (warning,) = (str(one.message) for one in caught if "winograd" in str(one.message))
    assert "conv_fprop_algo=winograd cannot compute the convolution 2x4x7x9 * 6x4x2x2" in warning
    assert "winograd: cuDNN does not support it for this problem on this device" in warning
    (row,) = rows()
    assert (row.requested, row.ran, row.provider, row.calls) == ("winograd", "torch", "torch", 2), row
    ask(conv_fprop_algo="winograd", fallback="error")
    assert "fallback=error: nothing was computed" in refused(lambda: check(x, w))
    ask(conv_fprop_algo="reference", fallback="error")
    assert "conv_fprop_algo=reference" in refused(lambda: check(x, w))
    """)


def test_torchs_own_flags_hold(asking: Run) -> None:
    asking("""
    x, w = torch.randn(2, 4, 7, 9), torch.randn(6, 4, 3, 3)
    ask(conv_wgrad_algo="algo_0", fallback="silent")

    def ran():
        log(cudnn)
        check(x, w)
        return [line.split()[1] for line in log(cudnn)]

    assert ran() == ["algo_0"]
    torch.backends.cudnn.deterministic = True
    assert ran() == []
    assert "torch's own flags require the same bits" in rows()[-1].reasons[0]
    torch.backends.cudnn.deterministic = False
    torch.use_deterministic_algorithms(True)
    assert ran() == []
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert ran() == ["algo_0"]
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.enabled = False
    assert ran() == []
    assert "torch.backends.cudnn.enabled is False" in rows()[-1].reasons[0]
    torch.backends.cudnn.enabled = True
    assert ran() == ["algo_0"]
    ask(conv_dgrad_algo="algo_0", conv_wgrad_algo="algo_3", deterministic=True, fallback="silent")
    assert ran() == []
    assert all("adds in no fixed order, and deterministic=ON requires the same bits" in row.reasons[0] for row in rows()[-2:])
    """)


def test_tf32_is_used_only_where_everybody_allows_it(asking: Run) -> None:
    asking("""
    x, w = torch.randn(2, 4, 7, 9), torch.randn(6, 4, 3, 3)

    def math(**fields):
        ask(**fields)
        log(cudnn)
        compute(*on_far(x, w))
        return log(cudnn)[0].split()[2]

    names = dict(conv_fprop_algo="implicit_precomp_gemm")
    assert math(**names, conv_allow_tf32=True) == "default", "CUDNN_DEFAULT_MATH is what allows TF32 from A100 on, as in torch"
    assert math(**names, conv_allow_tf32=False) == "fma"
    assert math(**names, conv_allow_tf32=True, allow_fp32_emulation=False) == "fma"
    assert math(conv_fprop_algo="gemm", conv_allow_tf32=True) == "fma", "it has no tensor cores"
    torch.backends.cudnn.allow_tf32 = False
    assert math(**names, conv_allow_tf32=True) == "fma"
    torch.backends.cudnn.allow_tf32 = True
    ask(**names, conv_allow_tf32=True)
    compute(*on_far(x, w))
    assert [row.math for row in rows()].count("tf32") == 1
    """)


def test_the_workspace_is_the_devices_memory_and_has_a_limit(asking: Run) -> None:
    asking("""
    x, w = on_far(torch.randn(2, 4, 7, 9), torch.randn(6, 4, 3, 3))
    ask(conv_fprop_algo="winograd_nonfused")
    torch.nn.functional.conv2d(x, w)
    torch.far.reset_peak_memory_stats()
    before = torch.far.memory_allocated()
    y = torch.nn.functional.conv2d(x, w)
    assert torch.far.max_memory_allocated() - before >= 8192 + y.nbytes
    (row,) = rows()
    assert row.workspace == 8192
    del y
    ask(conv_fprop_algo="winograd_nonfused", conv_workspace_limit=4096, fallback="silent")
    log(cudnn)
    torch.nn.functional.conv2d(x, w)
    assert not log(cudnn)
    assert "its workspace of 8 KiB is above conv_workspace_limit=4 KiB" in rows()[-1].reasons[0]
    """)


@pytest.mark.full
def test_an_algorithm_without_memory_for_its_workspace_falls_back(asking: Run) -> None:
    asking("""
    import ctypes, fake_device
    x, w = torch.randn(2, 4, 7, 9), torch.randn(6, 4, 3, 3)
    ask(conv_fprop_algo="fft_tiling", fallback="silent")
    limit = ctypes.CDLL(str(fake_device.library())).far_limit_blocks
    given = on_far(x, w)
    limit(ctypes.c_int64(6000))  # the result has 1680 bytes, and fft_tiling wants 6144
    log(cudnn)
    found = [torch.nn.functional.conv2d(*given) for _ in range(2)]
    limit(ctypes.c_int64(-1))
    assert not log(cudnn), rows()
    assert torch.allclose(found[0].cpu(), torch.nn.functional.conv2d(x, w), atol=1e-5)
    assert any("fft_tiling: there was no memory for its workspace" in reason for row in rows() for reason in row.reasons), rows()
    ask()
    ask(conv_fprop_algo="fft_tiling", fallback="silent")
    torch.nn.functional.conv2d(*given)
    assert log(cudnn)[0].split()[1] == "fft_tiling", "a lack of memory is forgotten with the policy"
    """)


@pytest.mark.full
@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has cuDNN")
def test_without_cudnn_the_error_names_the_library(far: Callable[..., str]) -> None:
    far("""
    from msctx.errors import NativeError
    from msctx.native import policy_and_choices
    from msctx.options.algorithm_policy import ConvPolicy
    try:
        policy_and_choices.write("cuda", ConvPolicy(conv_fprop_algo="gemm"))
    except NativeError as error:
        assert "libcudnn.so.9 is not loaded: this torch has no cuDNN" in str(error)
    else:
        raise AssertionError
    assert "cuda" not in policy_and_choices.IN_FORCE
    from msctx.native import core
    assert core.cudnn_obstacle() == "libcudnn.so.9 is not loaded: this torch has no cuDNN 9"
    """)


def test_threads_at_once_get_what_is_right_and_are_all_counted(asking: Run) -> None:
    """Each thread meets all problems, some at once for the first time: through autograd, and with gradients computed itself."""
    asking("""
    import faulthandler, threading
    from standin_driver import *
    driver = start_driver("f64")
    faulthandler.dump_traceback_later(90, exit=True)  # threads that wait for each other say where
    names = {"fprop": "implicit_gemm", "dgrad": "algo_1", "wgrad": "algo_3"}
    rules = "weight=4x1x3x3: fprop=direct; weight=6x4x2x2: fprop=gemm, dgrad=algo_0"
    ask(conv_algo_rules=rules, fallback="error", **{f"conv_{direction}_algo": name for direction, name in names.items()})
    shapes = {(6, 4, 3, 3): names, (6, 4, 2, 2): {**names, "fprop": "gemm", "dgrad": "algo_0"}}
    shapes[4, 1, 3, 3] = {**names, "fprop": "direct"}
    threads, rounds = 4, 6

    def gradients(x, w, groups):
        y = torch.nn.functional.conv2d(x, w, groups=groups)
        geometry = [1, 1], [0, 0], [1, 1], False, [0, 0], groups
        return [y, *torch.ops.aten.convolution_backward(2 * y, x, w, None, *geometry, [True, True, False])[:2]]

    given = [(torch.randn(2, 4, 9, 8).double(), torch.randn(shape).double(), 4 // shape[1]) for shape in shapes]
    exact = [gradients(*one) for one in given]
    start, wrong = threading.Barrier(threads), []

    def work():
        try:
            start.wait()
            for turn in range(rounds):
                for (x, w, groups), right in zip(given, exact, strict=True):
                    how = gradients if turn % 2 else lambda x, w, groups: compute(x, w, groups=groups)
                    found = how(*on_far(x, w), groups)
                    torch.testing.assert_close([one.cpu() for one in found], list(right))
        except BaseException as error:
            start.abort()
            wrong.append(error)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong, wrong
    found = {(row.problem.weight, row.direction): (row.ran, row.calls) for row in rows()}
    assert len(found) == len(rows()), "one row a problem"
    wanted = {(shape, direction): (name, threads * rounds) for shape, of in shapes.items() for direction, name in of.items()}
    assert found == wanted, found
    assert len([line for line in driver_log(driver) if line.startswith("depthwise_fprop_f64")]) == threads * rounds
    assert not own_calls
    """)

"""normal and performance on CUDA tensors: PyTorch's own path, and what is measured, when, and for how long it is kept."""

from collections.abc import Callable

Run = Callable[[str], str]


def test_normal_is_pytorchs_own_path(asking: Run) -> None:
    """cuDNN's heuristic chooses there: of a direction, and where a named algorithm cannot run."""
    asking("""
    ask(conv_fprop_algo="normal", conv_dgrad_algo="algo_1", conv_wgrad_algo="normal", fallback="error")
    log(cudnn)
    check(torch.randn(2, 4, 7, 9), torch.randn(6, 4, 3, 3))
    assert [line.split()[:2] for line in log(cudnn)] == [["backward_data", "algo_1"]]
    assert set(own_calls) == {"forward", "backward"}
    assert [(row.direction, row.ran) for row in rows()] == [("fprop", "torch"), ("dgrad", "algo_1"), ("wgrad", "torch")]
    assert rows()[0].reasons == ("cuDNN's heuristic chooses, in torch's own path",)
    """)


def test_performance_is_measured_once_and_kept_for_this_gpu_alone(measuring: Run) -> None:
    measuring("""
    import json
    x, w = torch.randn(2, 4, 7, 9), torch.randn(6, 4, 3, 3)
    ask(conv_fprop_algo="performance", tuning_file=folder + "/tuning.json")
    log(cudnn)
    check(x, w)
    tried = {line.split()[1] for line in log(cudnn) if line.startswith("forward")}
    assert tried >= {"implicit_gemm", "implicit_precomp_gemm", "gemm", "winograd", "winograd_nonfused", "fft"}, tried
    assert "forward" in own_calls, "torch's own path is one of them"
    assert standin.core.loaded().c.msctx_measurements() == 1
    check(x, w)
    assert standin.core.loaded().c.msctx_measurements() == 1
    torch.backends.cudnn.allow_tf32 = False
    ask(conv_fprop_algo="performance", conv_allow_tf32=True, tuning_file=folder + "/2.json")
    check(x, w)
    torch.backends.cudnn.allow_tf32 = True
    log(cudnn)
    compute(*on_far(x, w))
    assert standin.core.loaded().c.msctx_measurements() == 3
    assert any(line.split()[2] == "default" for line in log(cudnn)), "what TF32 gains was not known"
    ask()
    (group,) = json.load(open(folder + "/tuning.json"))["groups"]
    assert group["stamp"]["isa"].startswith("cuDNN ")
    assert "driver" in group["stamp"]["flags"]
    assert len(group["entries"]) == 1
    """)


def test_images_of_few_channels_are_measured_and_others_run_torchs_own_path(measuring: Run) -> None:
    """enable_small_channel."""
    measuring("""
    from dataclasses import fields
    import msctx
    requested = {"enable_small_channel": 1, "tuning_file": folder + "/tuning.json"}
    policy = msctx.explain(requested, device="cuda").assignments["native.convolution.cuda"]
    ask(**{f.name: getattr(policy, f.name) for f in fields(policy)})
    few, many = ((torch.randn(2, channels, 7, 9), torch.randn(6, channels, 3, 3)) for channels in (3, 5))
    check(*many)
    check(torch.randn(2, 3, 4, 5, 6), torch.randn(2, 3, 2, 2, 2))  # a volume has no channels
    assert set(own_calls) == {"forward", "backward"}
    assert not rows() and not log(cudnn) and standin.core.loaded().c.msctx_measurements() == 0, rows()
    check(*few)
    assert standin.core.loaded().c.msctx_measurements() == 3
    assert {(row.direction, row.requested) for row in rows()} == {(d, "performance") for d in ("fprop", "dgrad", "wgrad")}
    """)


def test_while_a_graph_is_recorded_nothing_is_measured(measuring: Run) -> None:
    """A problem that is first met then runs as by normal, and is measured when it is met again."""
    measuring("""
    import ctypes
    x, w = torch.randn(2, 4, 7, 9), torch.randn(6, 4, 3, 3)
    names = dict.fromkeys((f"conv_{direction}_algo" for direction in ("fprop", "dgrad", "wgrad")), "performance")
    ask(**names, tuning_file=folder + "/tuning.json")
    recorder = ctypes.CDLL(standin.core.CUDA[1])
    recorder.standin_capture(1)
    for _ in range(2):
        log(cudnn)
        check(x, w, padding=1)
        assert not log(cudnn)
    assert set(own_calls) == {"forward", "backward"}
    assert standin.core.loaded().c.msctx_measurements() == 0
    assert [(row.ran, row.calls) for row in rows()] == [("torch", 2)] * 3
    assert all(row.reasons[0].startswith("chosen as by normal: ") for row in rows()), rows()
    recorder.standin_capture(0)
    for _ in range(2):
        check(x, w, padding=1)
        assert standin.core.loaded().c.msctx_measurements() == 3
    assert any(row.reasons[0].startswith("measured in this process") for row in rows()), rows()
    """)


def test_problems_are_recorded_with_their_device_and_torchs_own_path_runs(measuring: Run) -> None:
    measuring("""
    import json, pathlib
    folder = pathlib.Path(folder)
    names = dict.fromkeys((f"conv_{direction}_algo" for direction in ("fprop", "dgrad", "wgrad")), "torch")
    torch.backends.cudnn.benchmark = True
    ask(**names, conv_allow_tf32=True, work_path=str(folder))
    log(cudnn)
    check(torch.randn(2, 4, 7, 9), torch.randn(6, 4, 3, 3))
    assert not log(cudnn) and set(own_calls) == {"forward", "backward"}
    ask()
    torch.backends.cudnn.benchmark = False
    (group,) = json.loads((folder / "msctx_tuning.json").read_text())["groups"]
    assert group["stamp"]["isa"].startswith("cuDNN ")
    assert sorted(e["direction"] for e in group["entries"]) == ["dgrad", "fprop", "wgrad"]
    assert {(e["threads"], e["permissions"], e["ran"]) for e in group["entries"]} == {
        (1, "strict, fp32-grade, tf32, torch benchmarks", "")
    }
    """)

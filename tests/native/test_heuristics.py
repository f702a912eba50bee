"""normal, performance and thread_invariant: what chooses by itself."""

from typing import Any

import pytest
import torch
from convs import DIRECTIONS, PLANE, REFERENCE, asking, conv
from torch.nn import functional as fn

import msctx

pytestmark = pytest.mark.usefixtures("one_thread")
NORMAL, PERFORMANCE = ({f"conv_{d}_algo": name for d in DIRECTIONS} for name in ("normal", "performance"))


def ran(ctx: "msctx.Context") -> list[tuple[str, str]]:
    return [(row.direction, row.ran) for row in ctx.choices()]


def test_normal_is_the_same_for_any_number_of_threads() -> None:
    for problem in (PLANE, conv("1d", (1, 3, 9), (2, 3, 3)), conv("t", (1, 2, 5, 5), (2, 3, 3, 3), transposed=True)):
        found = []
        for count in (1, 2):
            with msctx.context(**NORMAL, runtime_num_threads=count) as ctx:
                problem.compute(problem.tensors())
            found.append(sorted(ran(ctx)))
            assert {row.requested for row in ctx.choices()} == {"normal"}
        assert found[0] == found[1], problem


def test_of_two_rows_of_one_label_performance_runs_the_one_it_measured() -> None:
    """A depthwise convolution: ``direct`` has a row for it, and one for all others, which is much slower."""
    x, w = torch.randn(1, 64, 40, 40), torch.randn(64, 1, 13, 13)
    workspace = []
    for requested in ("direct", "performance"):
        with asking("fprop", requested) as ctx:
            fn.conv2d(x, w, padding=6, groups=64)
        (row,) = ctx.choices()
        labels = [reason.partition(":")[0] for reason in row.reasons[1:]]
        assert len(set(labels)) == len(labels)
        if row.ran == "direct":
            workspace.append(row.workspace)
    assert len(set(workspace)) == 1, "one algorithm"
    assert workspace[0] > 0, "the other one needs none"


@pytest.mark.parametrize("requested", ["normal", "performance"])
def test_no_row_is_chosen_whose_bound_is_above_conv_max_error(requested: str) -> None:
    x, w = torch.randn(1, 64, 56, 56), torch.randn(64, 64, 3, 3)  # Winograd's problem
    with asking("fprop", requested, conv_max_error=1e-12) as ctx:
        fn.conv2d(x, w)
    assert ran(ctx) == [("fprop", "torch")]
    if requested == "normal":
        assert "winograd: its error bound is above conv_max_error=1e-12" in ctx.choices()[0].reasons
    with asking("fprop", requested, conv_max_error=2e-6, conv_allow_tf32=True) as ctx:
        fn.conv2d(x, w)
    (row,) = ctx.choices()
    assert row.ran == "torch" if row.error is None else row.error <= 2e-6
    with asking("fprop", "winograd", conv_max_error=1e-12) as ctx:
        fn.conv2d(x, w)
    assert ran(ctx) == [("fprop", "winograd")], "a name is taken at its word"


def test_thread_invariant_runs_no_row_whose_bound_is_above_conv_max_error() -> None:
    x, w = torch.randn(1, 16, 12, 12), torch.randn(16, 16, 3, 3)
    with msctx.context(thread_invariant=True, conv_max_error=2e-7) as ctx:
        fn.conv2d(x, w)
    (row,) = ctx.choices()
    assert (row.ran, row.error <= 2e-7) == ("reference", True), "summed in float64, it has the lowest bound"
    none = {"thread_invariant": True, "conv_max_error": 1e-9}
    with pytest.warns(msctx.MsctxWarning, match="thread_invariant does not hold for"), msctx.context(**none) as ctx:
        fn.conv2d(x, w)
    assert ran(ctx) == [("fprop", "torch")]
    with msctx.context(**none, fallback="error"), pytest.raises(RuntimeError, match="1e-09"):
        fn.conv2d(x, w)


def test_few_channels_run_what_normal_takes_and_others_what_torch_does() -> None:
    """enable_small_channel is for images of one to four channels, and where an algorithm is named that one runs."""
    few, many = conv("few", (1, 3, 40, 40), (32, 3, 7, 7), True, stride=2), conv("many", (1, 5, 9, 9), (2, 5, 3, 3), True)
    with msctx.context(**NORMAL) as ctx:
        few.compute(few.tensors())
    normal = ran(ctx)
    assert len(normal) == 3
    with msctx.context(enable_small_channel=1, seed=0) as ctx:
        for problem in (few, many):
            problem.compute(problem.tensors())
    assert ran(ctx) == normal
    assert {row.requested for row in ctx.choices()} == {"normal"}
    slices = conv("slices", (1, 8, 3, 9, 9), (4, 8, 3, 3, 3))
    with msctx.context(enable_small_channel=1) as ctx:
        slices.compute(slices.tensors())
    assert not ctx.choices(), "of a volume they are no channels"
    with msctx.context(enable_small_channel=1, conv_fprop_algo="reference") as ctx:
        few.compute(few.tensors())
    assert dict(ran(ctx)) == {**dict(normal), "fprop": "reference"}
    with msctx.context(enable_small_channel=1, conv_algo_rules={"input=*x3x40*": {"fprop": "direct"}}) as ctx:
        few.compute(few.tensors())
    assert dict(ran(ctx))["fprop"] == "direct"


def test_thread_invariant_takes_every_convolution_and_a_named_algorithm_beats_it_where_it_keeps_its_bits() -> None:
    problems = [PLANE, conv("1d", (1, 3, 9), (2, 3, 3), True), conv("3d", (1, 2, 4, 4, 4), (2, 2, 3, 3, 3))]
    with msctx.context(thread_invariant=True) as ctx:
        for problem in problems:
            problem.compute(problem.tensors())
    assert len(ctx.choices()) == 9
    for row in ctx.choices():
        assert (row.requested, row.provider) == ("thread_invariant", "msctx")
        assert row.ran not in ("algo_0", "algo_3", "torch")
        assert row.reasons or row.ran == "winograd" or row.math == "fp32-grade"
    with msctx.context(thread_invariant=True, **REFERENCE) as ctx:
        PLANE.compute(PLANE.tensors())
    assert {row.ran for row in ctx.choices()} == {"reference"}
    with msctx.context(thread_invariant=True, conv_algo_rules="dims=2: dgrad=algo_0", fallback="silent") as ctx:
        PLANE.compute(PLANE.tensors())
    (row,) = [row for row in ctx.choices() if row.direction == "dgrad"]
    assert (row.requested, row.provider, row.ran != "algo_0") == ("algo_0", "msctx", True), "torch's own path promises nothing"
    assert any("thread_invariant" in reason for reason in row.reasons)


# --- scopes inside others ---------------------------------------------------------------------------------------------

X, W = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)


def test_determinism_reaches_what_an_outer_scope_and_set_context_asked_for() -> None:
    x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
    msctx.set_context(conv_wgrad_algo="algo_3")
    try:
        with msctx.context(conv_dgrad_algo="algo_0") as outer:
            with pytest.warns(msctx.MsctxWarning, match=r"conv_dgrad_algo='algo_0'.*deterministic=ON") as found:
                inner = msctx.context(deterministic="ON").__enter__()
            assert any("conv_wgrad_algo" in str(w.message) for w in found)
            fn.conv2d(x, w).sum().backward()
            inner.__exit__()
            assert not inner.choices(), "a policy is in force where nothing is requested"
            fn.conv2d(x, w).sum().backward()
    finally:
        msctx.reset_context()
    assert sorted(row.ran for row in outer.choices()) == ["algo_0", "algo_3"]


@pytest.mark.parametrize("size", [28, 6])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_batch_invariant_chooses_the_same_for_every_batch(size: int, layout: torch.memory_format) -> None:
    """Winograd's transform takes each image by itself: what the values of the others are decides nothing."""
    images = torch.randn(12, 64, size, size).contiguous(memory_format=layout)
    images[4] *= 1e36  # overflows inside a transform
    images[7, 3, 5, 5] = torch.inf
    w = torch.randn(64, 64, 3, 3)

    def results(count: int, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        x = images[:count].clone().requires_grad_()
        with msctx.context(batch_invariant=True, **options) as ctx:
            y = fn.conv2d(x, w, padding=1)
            y.backward(y.detach())
        assert {(row.direction, row.requested, row.provider) for row in ctx.choices() if row.direction != "wgrad"} == {
            ("fprop", options.get("conv_fprop_algo", "batch_invariant"), "msctx"),
            ("dgrad", "batch_invariant", "msctx"),
        }
        forward = next(row for row in ctx.choices() if row.direction == "fprop")
        assert (forward.ran == "winograd") == (size == 28 or options.get("conv_fprop_algo") == "winograd")
        assert x.grad is not None
        return y.detach(), x.grad

    for options in ({}, {"conv_fprop_algo": "performance"}, {"frozen_weights": True}, {"conv_fprop_algo": "winograd"}):
        whole = results(12, **options)
        for count in (1, 2, 5):
            for part, all_ in zip(results(count, **options), whole, strict=True):
                torch.testing.assert_close(part, all_[:count], rtol=0, atol=0, equal_nan=True, msg=str(options))
        near = fn.conv2d(images[:4].double(), w.double(), padding=1)
        assert (whole[0][:4] - near).abs().max() < 3e-5 * near.abs().max()

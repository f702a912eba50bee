"""fallback: what a call does whose named algorithm cannot take it."""

import pytest
import torch
from convs import DIRECTIONS, asking, bits, conv, row_of, warned
from torch.nn import functional as fn

import msctx
from msctx.errors import MsctxWarning, StrictError
from msctx.options import OPTIONS
from msctx.tables import in_words

pytestmark = pytest.mark.usefixtures("one_thread")
STRIDED = conv("strided", (2, 3, 9, 9), (4, 3, 3, 3), True, stride=2)
X, W = STRIDED.tensors()[:2]


def test_the_first_problem_is_reported_in_a_line(recwarn: pytest.WarningsRecorder) -> None:
    with asking("fprop", "winograd") as ctx:
        for _ in range(3):
            fn.conv2d(X, W, stride=2)
        for dilation in (2, 3):
            fn.conv2d(X, W, dilation=dilation)
        fn.conv2d(X, W)
    (first,) = warned(recwarn)
    assert {w.filename for w in recwarn if issubclass(w.category, MsctxWarning)} == {__file__}
    problem = "2x3x9x9 * 4x3x3x3, float32, stride 2, channels_first"
    start = (
        f"conv_fprop_algo=winograd cannot compute the convolution {problem} (winograd: it needs stride 1; this layer has 2). "
        "PyTorch computes it instead"
    )
    assert first.startswith(start)
    assert "\n" not in first
    assert sorted((row.ran, row.calls) for row in ctx.choices()) == [("torch", 1), ("torch", 1), ("torch", 3), ("winograd", 1)]


def test_silent_shows_in_choices_alone_and_runs_torchs_own_path_bit_for_bit(recwarn: pytest.WarningsRecorder) -> None:
    tensors = STRIDED.tensors()
    own = STRIDED.compute(tensors)
    options = {"conv_fprop_algo": "winograd", "conv_dgrad_algo": "winograd", "conv_wgrad_algo": "winograd_nonfused"}
    with msctx.context(**options, fallback="silent") as ctx:
        assert bits(STRIDED.compute(tensors)) == bits(own)
    assert not warned(recwarn)
    row = row_of(ctx.choices(), "fprop")
    assert (row.requested, row.ran, row.provider) == ("winograd", "torch", "torch")
    assert row.reasons == ("winograd: it needs stride 1; this layer has 2",)


@pytest.mark.parametrize("more", [{"fallback": "error"}, {"strict": True}], ids=["error", "strict"])
def test_an_error_lists_every_candidate_with_all_of_its_reasons(more: dict[str, object]) -> None:
    x, w = torch.randn(1, 2, 9, 9), torch.randn(3, 2, 2, 3)
    with asking("fprop", "winograd", **more) as ctx, pytest.raises(RuntimeError) as raised:
        fn.conv2d(x, w, stride=2, dilation=2)
    text = str(raised.value)
    lines = {line.split(":")[0].strip(): line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("  ")}
    assert {line.split(" (")[0] for line in lines} == {*OPTIONS["conv_fprop_algo"].choices} - {"normal", "performance"}
    for reason in ("it needs a window of 3x3 or 5x5", "it needs stride 1", "it needs dilation 1"):
        assert reason in lines["winograd"]
    assert lines["gemm"] == lines["reference"] == "could compute it"
    assert "nothing was computed" in text
    assert not ctx.choices(), "a call that raised did not run"


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_an_error_in_each_direction(direction: str) -> None:
    x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
    with asking(direction, "winograd_nonfused", fallback="error") as ctx:
        with pytest.raises(RuntimeError, match=f"conv_{direction}_algo=winograd_nonfused cannot compute"):
            fn.conv2d(x, w, stride=2).sum().backward()
        assert (x.grad, w.grad) == (None, None)
        fn.conv2d(x, w).sum().backward()
    assert [(row.ran, row.calls) for row in ctx.choices()] == [("winograd_nonfused", 1)]
    assert x.grad is not None


def test_the_innermost_fallback_holds_and_strict_implies_error_unless_it_is_given() -> None:
    with asking("fprop", "winograd", strict=True):
        with pytest.raises(RuntimeError, match="strict=True: nothing was computed"):
            fn.conv2d(X, W, stride=2)
        with msctx.context(fallback="silent") as ctx:
            fn.conv2d(X, W, stride=2)
        assert [row.ran for row in ctx.choices()] == ["torch"]
        with pytest.raises(RuntimeError, match="cannot compute"):
            fn.conv2d(X, W, stride=2)
    with asking("fprop", "winograd", strict=True, fallback="silent"):
        fn.conv2d(X, W, stride=2)


def test_the_heuristics_take_torchs_path_without_an_error_and_keep_the_limit() -> None:
    for name in ("normal", "performance"):
        with msctx.context(**{f"conv_{d}_algo": name for d in DIRECTIONS}, fallback="error", conv_workspace_limit=0) as ctx:
            fn.conv2d(X.half(), W.half(), stride=2)
            fn.conv2d(X, W)
            fn.conv2d(X, W)
        assert {row.workspace for row in ctx.choices()} == {0}


def test_an_algorithm_of_no_fixed_order_by_rule_is_refused_at_the_call_under_determinism() -> None:
    x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
    rules = {"weight=4x3x3x3": {"dgrad": "algo_0", "wgrad": "algo_3"}}
    with msctx.context(conv_algo_rules=rules, deterministic="ON", fallback="silent") as ctx:
        fn.conv2d(x, w).sum().backward()
    assert sorted((row.requested, row.ran) for row in ctx.choices()) == [("algo_0", "torch"), ("algo_3", "torch")]
    for row in ctx.choices():
        assert "no fixed order" in row.reasons[0]
        assert "deterministic=ON" in row.reasons[0]
    with msctx.context(conv_algo_rules=rules, deterministic="ON", strict=True):
        y = fn.conv2d(x, w)
        with pytest.raises(
            RuntimeError, match=r"(?s)^conv_algo_rules: algo_0 cannot.*algo_0: it adds in no fixed order, and deterministic=ON"
        ):
            y.sum().backward()
    with pytest.raises(StrictError, match="no fixed order"), asking("dgrad", "algo_0", deterministic="ON", strict=True):
        pass


# --- conv_workspace_limit --------------------------------------------------------------------------------------------


def test_a_workspace_limit_is_kept(recwarn: pytest.WarningsRecorder) -> None:
    with asking("fprop", "gemm") as ctx:
        fn.conv2d(X, W)
    needs = ctx.choices()[0].workspace
    with asking("fprop", "gemm", conv_workspace_limit=needs, fallback="error") as ctx:
        fn.conv2d(X, W)
    assert [row.ran for row in ctx.choices()] == ["gemm"]
    with asking("fprop", "gemm", conv_workspace_limit=needs - 1) as ctx:
        fn.conv2d(X, W)
    (row,) = ctx.choices()
    assert row.ran == "torch"
    assert row.reasons == (f"gemm: its workspace of {in_words(needs)} is above conv_workspace_limit={in_words(needs - 1)}",)
    assert len(warned(recwarn)) == 1

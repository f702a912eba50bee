"""fallback: what a call does whose named algorithm cannot take it."""

from __future__ import annotations

import warnings

import pytest
import torch
from convs import DIRECTIONS, asking, bits, conv, row_of, warned
from torch.nn import functional as fn

import msctx
from msctx.errors import MsctxWarning, StrictError
from msctx.options import OPTIONS

pytestmark = pytest.mark.usefixtures("one_thread")
STRIDED = conv("strided", (2, 3, 9, 9), (4, 3, 3, 3), True, stride=2)
X, W = STRIDED.tensors()[:2]


def test_the_first_problem_is_reported_in_a_line_and_the_others_are_counted(recwarn: pytest.WarningsRecorder) -> None:
    with asking("fprop", "winograd") as ctx:
        for _ in range(3):
            fn.conv2d(X, W, stride=2)
        for dilation in (2, 3):
            fn.conv2d(X, W, dilation=dilation)
        fn.conv2d(X, W)
    first, rest = warned(recwarn)
    assert {w.filename for w in recwarn if issubclass(w.category, MsctxWarning)} == {__file__}
    problem = "2x3x9x9 with 4x3x3x3 (float32, stride 2, padding 0, dilation 1, groups 1, channels_first)"
    start = (
        f"conv_fprop_algo=winograd cannot compute the convolution of {problem} (winograd: it needs stride 1; this layer has 2). "
        "PyTorch computes it instead"
    )
    assert first.startswith(start)
    assert "\n" not in first
    assert rest == "conv_fprop_algo=winograd could not compute 2 more calls; choices() lists them, with reasons"
    assert sorted((row.ran, row.calls) for row in ctx.choices()) == [("torch", 1), ("torch", 1), ("torch", 3), ("winograd", 1)]


def test_each_context_names_its_first_problem_and_counts_its_others(recwarn: pytest.WarningsRecorder) -> None:
    """Once for each problem and reason: what an earlier context has named is not named again."""
    warnings.simplefilter("always")  # Python's own filter drops equal texts of one line
    for strides in ((2, 3), (4, 5), (2, 6)):
        with asking("fprop", "winograd"):
            for stride in strides:
                fn.conv2d(torch.randn(2, 3, 17, 9), W, stride=stride)
    found = [text.partition(" (winograd: it needs stride 1; ")[2][:16] or text.partition(";")[0] for text in warned(recwarn)]
    more = "conv_fprop_algo=winograd could not compute 1 more call"
    assert found == ["this layer has 2", more, "this layer has 4", more, "this layer has 6"]


def test_a_context_that_is_entered_again_counts_on(recwarn: pytest.WarningsRecorder) -> None:
    ctx = asking("fprop", "winograd")
    for stride in (2, 3, 4):
        with ctx:
            fn.conv2d(torch.randn(2, 3, 18, 9), W, stride=stride)
    first, rest = warned(recwarn)
    assert "cannot compute the convolution of 2x3x18x9" in first
    assert "could not compute 1 more call" in rest


@pytest.mark.parametrize("invariance", ["thread_invariant", "batch_invariant"])
def test_bits_that_are_not_kept_are_reported_in_each_context(invariance: str, recwarn: pytest.WarningsRecorder) -> None:
    a, b = torch.randn(16, 4096), torch.randn(4096, 16)
    for limit in (1e-7, 1e-8, 1e-9):
        with msctx.context(matmul_max_error=limit, **{invariance: True}):
            a @ b
    texts = [text for text in warned(recwarn) if text.startswith(invariance)]
    assert [text.rpartition("matmul_max_error=")[2][:5] for text in texts] == ["1e-07", "1e-08", "1e-09"]


def test_a_second_test_that_expects_the_warning_gets_it() -> None:
    for _ in range(2):
        with pytest.warns(MsctxWarning, match="cannot compute"), asking("fprop", "winograd"):
            fn.conv2d(X, W, stride=2)
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        for _ in range(3):
            with asking("fprop", "winograd"):
                fn.conv2d(X, W, stride=2)
        assert len(issued) == 1
        msctx.reset_context()
        with asking("fprop", "winograd"):
            fn.conv2d(X, W, stride=2)
    assert len(issued) == 2


def test_silent_shows_in_choices_alone_and_runs_torchs_own_path_bit_for_bit(recwarn: pytest.WarningsRecorder) -> None:
    tensors = STRIDED.tensors()
    own = STRIDED.compute(tensors)
    options = {"conv_fprop_algo": "winograd", "conv_dgrad_algo": "winograd", "conv_wgrad_algo": "winograd_nonfused"}
    with msctx.context(**options, fallback="silent") as ctx:
        assert bits(STRIDED.compute(tensors)) == bits(own)
    assert not warned(recwarn)
    row = row_of(ctx.choices(), "fprop")
    assert (row.asked, row.ran, row.provider) == ("winograd", "torch", "torch")
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


def test_a_gradient_of_another_dtype_that_torch_takes_is_a_fallback() -> None:
    def backward() -> torch.Tensor:
        gradient = torch.ones(2, 4, 4, 4, dtype=torch.bfloat16)
        return torch.ops.aten.convolution_backward(
            gradient, X, W, None, [2, 2], [0, 0], [1, 1], False, [0, 0], 1, [True, False, False]
        )[0]

    try:
        own = backward()
    except RuntimeError as error:
        pytest.skip(f"torch does not take it here: {error}")
    with asking("dgrad", "algo_1", fallback="silent") as ctx:
        assert torch.equal(backward(), own)
    (row,) = ctx.choices()
    assert (row.direction, row.ran, row.calls) == ("dgrad", "torch", 1)
    assert row.reasons == ("its gradient has another type or shape than its result",)
    with (
        asking("dgrad", "algo_1", fallback="error"),
        pytest.raises(RuntimeError, match="its gradient has another type or shape"),
    ):
        backward()
    with asking("wgrad", "algo_1", fallback="error"):
        assert torch.equal(backward(), own)


def test_after_an_error_everything_is_fine() -> None:
    own = fn.conv2d(X, W, stride=2)
    with asking("fprop", "winograd", fallback="error") as ctx:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="it needs stride 1"):
                fn.conv2d(X, W, stride=2)
        fn.conv2d(X, W)
    assert [(row.ran, row.calls) for row in ctx.choices()] == [("winograd", 1)]
    assert torch.equal(fn.conv2d(X, W, stride=2), own)


def test_the_innermost_fallback_holds_and_strict_implies_error_unless_it_is_given() -> None:
    with asking("fprop", "winograd", strict=True):
        with pytest.raises(RuntimeError, match="fallback=error"):
            fn.conv2d(X, W, stride=2)
        with msctx.context(fallback="silent") as ctx:
            fn.conv2d(X, W, stride=2)
        assert [row.ran for row in ctx.choices()] == ["torch"]
        with pytest.raises(RuntimeError, match="cannot compute"):
            fn.conv2d(X, W, stride=2)
    with asking("fprop", "winograd", strict=True, fallback="silent"):
        fn.conv2d(X, W, stride=2)


def test_warnings_turned_into_errors_raise_at_the_call() -> None:
    with warnings.catch_warnings(), asking("fprop", "winograd") as ctx:
        warnings.simplefilter("error", MsctxWarning)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="it needs stride 1"):
                fn.conv2d(X, W, stride=2)
        fn.conv2d(X, W)
    assert [row.ran for row in ctx.choices()] == ["winograd"]


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
    assert sorted((row.asked, row.ran) for row in ctx.choices()) == [("algo_0", "torch"), ("algo_3", "torch")]
    for row in ctx.choices():
        assert "no fixed order" in row.reasons[0]
        assert "deterministic=ON" in row.reasons[0]
    with msctx.context(conv_algo_rules=rules, deterministic="ON", strict=True):
        y = fn.conv2d(x, w)
        with pytest.raises(RuntimeError, match=r"algo_0: it adds in no fixed order, and deterministic=ON"):
            y.sum().backward()


@pytest.mark.usefixtures("torch_as_found")
def test_the_same_where_torch_itself_is_set_to_be_deterministic() -> None:
    x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
    with asking("wgrad", "algo_0", fallback="silent") as ctx:
        for flags in ({"mode": True}, {"mode": True, "warn_only": True}, {"mode": False}):
            torch.use_deterministic_algorithms(**flags)
            fn.conv2d(x, w).sum().backward()
    assert [(row.ran, row.calls) for row in ctx.choices()] == [("torch", 1), ("algo_0", 2)]
    assert "torch's own flags ask for the same bits" in ctx.choices()[0].reasons[0]


def test_an_algorithm_of_no_fixed_order_that_is_named_is_refused_at_entry() -> None:
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
    assert row.reasons == (f"gemm: its workspace of {needs} bytes is above conv_workspace_limit={needs - 1}",)
    assert len(warned(recwarn)) == 1


def test_error_raises_at_entry_where_no_call_can_run_it(passes, tmp_path) -> None:
    out = passes(
        """
        import torch, msctx
        before = msctx.state()
        for enter in (msctx.context, msctx.set_context):
            for asked in ({"conv_fprop_algo": "gemm"}, {"conv_algo_rules": {"all": "gemm"}}):
                try:
                    entered = enter(**asked, fallback="error")
                    with entered or msctx.context():
                        raise SystemExit("entered")
                except msctx.StrictError as error:
                    first, row, *_ = str(error).splitlines()
                    assert first.startswith('fallback="error", and this would not be carried out'), error
                    assert row.strip().startswith(next(iter(asked))) and "/nonexistent" in row, error
                assert msctx.state() == before
        with msctx.context(thread_invariant=False, fallback="error"):
            print("entered")
        """,
        env={"CXX": "/nonexistent", "MSCTX_CACHE_DIR": str(tmp_path)},
    )
    assert out == "entered\n"

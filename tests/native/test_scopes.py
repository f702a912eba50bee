"""The policy over time and place: late backward passes, restoring, set_context, other threads, other processes."""

from collections.abc import Callable

import pytest
import torch
from context_helpers import in_thread
from convs import GEMM, asking, warned
from torch.nn import functional as fn

import msctx

pytestmark = pytest.mark.usefixtures("one_thread")
X, W = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)


# --- a backward pass that comes too late ------------------------------------------------------------------------------


def test_a_late_backward_runs_torchs_own_way_and_is_reported_once(recwarn: pytest.WarningsRecorder) -> None:
    own = X.clone().requires_grad_(), W.clone().requires_grad_()
    fn.conv2d(*own).sum().backward()
    x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
    with msctx.context(conv_dgrad_algo="fft", conv_wgrad_algo="fft") as ctx:
        y = fn.conv2d(x, w)
    for _ in range(2):
        y.sum().backward(retain_graph=True)
    assert not ctx.choices()
    (warning,) = warned(recwarn)
    assert "backward pass runs after the with-block" in warning
    assert torch.equal(x.grad / 2, own[0].grad)
    assert torch.equal(w.grad / 2, own[1].grad)


@pytest.mark.parametrize("case", ["inside", "fprop-only", "outside", "no-grad", "forward-again", "frozen"])
def test_no_warning_where_nothing_is_late(case: str, recwarn: pytest.WarningsRecorder) -> None:
    x, w = X.clone().requires_grad_(), W.clone().requires_grad_(case != "frozen")
    options = {"conv_fprop_algo": "gemm"} if case == "fprop-only" else GEMM
    if case == "outside":
        y = fn.conv2d(x, w)
    with msctx.context(**options):
        if case == "no-grad":
            with torch.no_grad():
                fn.conv2d(x, w)
        elif case != "outside":
            y = fn.conv2d(x, w)
        if case == "inside":
            y.sum().backward()
    if case in ("no-grad", "forward-again"):
        y = fn.conv2d(x, w)
    if case not in ("inside", "frozen"):
        y.sum().backward()
    assert not warned(recwarn)


# --- afterwards -------------------------------------------------------------------------------------------------------


def test_set_context_and_reset_context(recwarn: pytest.WarningsRecorder) -> None:
    own, x = fn.conv2d(X, W), torch.randn(1, 3, 21, 8)

    def count() -> dict[str, int]:
        fn.conv2d(x, W)
        return {row.ran: row.calls for row in msctx.choices() if row.problem.input == (1, 3, 21, 8)}

    msctx.set_context(conv_fprop_algo="gemm")
    try:
        assert count() == {"gemm": 1}
        with asking("fprop", "direct"):
            fn.conv2d(x, W)
        assert count() == {"gemm": 2, "direct": 1}
        assert msctx.get_context("conv_fprop_algo") == "gemm"
        msctx.set_context(conv_fprop_algo="reference")
        assert count() == {"gemm": 2, "direct": 1, "reference": 1}
    finally:
        msctx.reset_context()
    assert count() == {"gemm": 2, "direct": 1, "reference": 1}
    assert torch.equal(fn.conv2d(X, W), own)
    assert not warned(recwarn)


# --- threads ----------------------------------------------------------------------------------------------------------


def test_the_policy_is_the_processs_and_other_threads_are_counted() -> None:
    with asking("fprop", "gemm", fallback="error") as ctx:
        in_thread(lambda: fn.conv2d(X, W))
        assert [row.calls for row in in_thread(ctx.choices)] == [1]
        in_thread(ctx.bind(lambda: fn.conv2d(X, W)))
    assert [(row.ran, row.calls) for row in ctx.choices()] == [("gemm", 2)]


def test_threads_that_enter_compute_and_leave_at_the_same_time(passes: Callable[..., str]) -> None:
    """What another one holds is refused. On one processor threads stop inside calls; the larger ones more often."""
    passes("""
        import os, threading, torch, msctx
        from concurrent.futures import ThreadPoolExecutor
        from torch.nn import functional as fn
        from msctx.native import core
        torch.set_num_threads(1)
        core.load()
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        x, w, large = torch.randn(1, 2, 6, 6), torch.randn(3, 2, 3, 3), torch.randn(1, 2, 64, 64)
        right, larger = fn.conv2d(x, w), fn.conv2d(large, w)
        entered, done = [], threading.Event()

        def enter(algorithm):
            for _ in range(1000):
                try:
                    with msctx.context(conv_fprop_algo=algorithm) as ctx:
                        found = fn.conv2d(x, w)
                        assert torch.allclose(found, right, atol=1e-4), (algorithm, found, right)
                        made = ctx.choices()
                        assert {row.requested for row in made} == {algorithm}, (algorithm, made)
                        entered.append(algorithm)
                except msctx.ScopeError:
                    pass

        def compute():
            while not done.is_set():
                found = fn.conv2d(large, w)
                assert torch.allclose(found, larger, atol=1e-4), (found, larger)

        with ThreadPoolExecutor(5) as pool:
            others = [pool.submit(compute) for _ in range(2)] + [pool.submit(lambda: [msctx.choices() for _ in range(200)])]
            both = [pool.submit(enter, algorithm) for algorithm in ("gemm", "direct")]
            try:
                [one.result() for one in both]
            finally:
                done.set()
            [one.result() for one in others]
        assert entered
        assert torch.equal(fn.conv2d(x, w), right)
    """)


# --- processes --------------------------------------------------------------------------------------------------------


def test_a_forked_child_computes_inside(passes: Callable[..., str]) -> None:
    """OpenMP's threads do not come along: a child that waited for them would hang."""
    passes(
        """
        import os, signal, torch, msctx
        from torch.nn import functional as fn
        torch.set_num_threads(4)
        x, w = torch.randn(2, 8, 20, 20), torch.randn(16, 8, 3, 3, requires_grad=True)  # torch's own loops stay on one thread

        with msctx.context(conv_fprop_algo="gemm", conv_dgrad_algo="algo_1", conv_wgrad_algo="algo_1", fallback="error") as ctx:
            right = fn.conv2d(x, w)
            torch.autograd.grad(right.sum(), w)
            if (pid := os.fork()) == 0:
                signal.alarm(20)
                same = torch.equal(fn.conv2d(x, w), right)
                with msctx.context(conv_fprop_algo="direct", thread_invariant=True, conv_wgrad_algo="performance") as inner:
                    same &= fn.conv2d(x, w.detach()).allclose(right, atol=1e-3)
                ran = {row.ran for row in ctx.choices()}, {row.ran for row in inner.choices()}
                os._exit(0 if same and ran[0] >= {"gemm", "algo_1"} and ran[1] == {"direct"} else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            assert torch.equal(fn.conv2d(x, w), right)
        """,
        timeout=90,
    )


@pytest.mark.parametrize("options", ['max_device_memory="4GB"', 'conv_fprop_algo="gemm"', "op_timeout=60"])
def test_entering_alone_starts_no_threads_that_a_forked_child_would_wait_for(passes: Callable[..., str], options: str) -> None:
    """A parent that only starts workers: PyTorch's own operators run on several threads in the child."""
    passes(
        f"""
        import os, signal, torch, msctx
        torch.set_num_threads(2)
        with msctx.context({options}):
            if (pid := os.fork()) == 0:
                signal.alarm(20)
                torch.randn(500, 500) @ torch.randn(500, 500)
                torch.randn(200_000).exp().sum()
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        """,
        timeout=60,
    )

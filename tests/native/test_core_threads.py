"""Threads that plan, enter, compute and leave at the same time; and what each question to the core costs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Passes = Callable[..., str]
TOGETHER = """
import gc, os, sys, threading, torch, msctx
from torch.nn import functional as fn
from msctx.native import core

torch.set_num_threads(1)

def together(*functions):
    errors = []
    def guarded(function):
        try:
            function()
        except BaseException as error:
            errors.append(error)
    threads = [threading.Thread(target=guarded, args=(function,)) for function in functions]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not errors, errors

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE")
"""


def test_threads_that_enter_compute_and_leave(passes: Passes) -> None:
    """Contexts of one thread each: what another one holds is refused, and nothing else happens. On one processor
    threads stop inside calls; the larger ones more often."""
    passes(
        TOGETHER
        + """
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
def enter_both():
    try:
        together(lambda: enter("gemm"), lambda: enter("direct"))
    finally:
        done.set()
def compute():
    while not done.is_set():
        found = fn.conv2d(large, w)
        assert torch.allclose(found, larger, atol=1e-4), (found, larger)
together(enter_both, compute, compute, lambda: [msctx.choices() for _ in range(200)])
assert entered
assert torch.equal(fn.conv2d(x, w), right)
"""
    )


def test_a_context_that_is_entered_again_sends_one_policy_and_decides_nothing(passes: Passes) -> None:
    passes(
        TOGETHER
        + """
from msctx.native import tuning
tuning.is_busy = lambda: False
library = core.load()
for turn in range(101_000):  # asking whose kernels are in force keeps no memory
    if turn == 1000:
        before = resident()
    library.hook_problem()
assert resident() - before < 2**21, resident() - before
x, w = torch.randn(1, 2, 6, 6), torch.randn(3, 2, 3, 3)
sent = []
def counting(where, name):
    function = getattr(where, name)
    def counted(*args, **kwargs):
        sent.append(name)
        return function(*args, **kwargs)
    setattr(where, name, counted)
counting(core.Core, "set_policy")
options = dict(conv_fprop_algo="performance", conv_dgrad_algo="normal", conv_workspace_limit="1MB")
options |= dict(fallback="silent", conv_max_error=1e-5)
made = []
for turn in range(3):
    with msctx.context(**options) as ctx:
        assert sent == ["set_policy"], sent
        fn.conv2d(x, w)
        sent.clear()
        before = library.measurements()
    assert sent == ["set_policy"], sent
    sent.clear()
    made.append(library.measurements())
assert made[1:] == [made[0]] * 2
""",
        env={"MSCTX_CACHE_DIR": ""},
    )


@pytest.mark.full
def test_the_log_is_bounded_and_shows_what_it_dropped(passes: Passes) -> None:
    passes(
        TOGETHER
        + """
w = torch.randn(1, 1, 1, 1)
with msctx.context(conv_fprop_algo="gemm") as outer:
    with msctx.context(conv_fprop_algo="direct") as inner:
        fn.conv2d(torch.ones(1, 1, 1, 7), w)
    for width in range(1, 5001):
        fn.conv2d(torch.ones(1, 1, 1, width), w)
    before = resident()
    for width in range(5001, 10001):
        fn.conv2d(torch.ones(1, 1, 1, width), w)
    grown = resident() - before
found = outer.choices()
assert 3000 <= len(found) <= 4096 and len(found) + found.dropped == 10001, (len(found), found.dropped)
assert found[-1].problem.input == (1, 1, 1, 10000), "the latest are kept"
assert f"{found.dropped} rows used longer ago were dropped" in str(found[-3:])
(row,) = inner.choices()  # a context that is closed keeps its own
assert (row.calls, inner.choices().dropped) == (1, 0)
assert len(msctx.choices()) <= 4096 and msctx.choices().dropped >= 5904
assert grown < 20 * 2**20, grown
"""
    )

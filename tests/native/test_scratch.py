"""Workspaces come from a pool: repeated calls touch no fresh memory, and little stays when the context is left."""

from collections.abc import Callable

import pytest

COMMON = """
import contextlib, resource, torch, msctx
from concurrent.futures import ThreadPoolExecutor
from torch.nn import functional as fn

torch.set_num_threads(1)

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

x, w = torch.randn(1, 32, 96, 96), torch.randn(2, 32, 3, 3)  # unfolded 10 MB, the result 70 KB
"""
FRESH = {"MALLOC_MMAP_THRESHOLD_": "1048576"}
"""Each large block comes from the system, and goes back to it."""


@pytest.fixture
def in_fresh_process(passes: Callable[..., str]) -> Callable[[str], str]:
    return lambda code: passes(COMMON + code, env=FRESH)


def test_repeated_calls_touch_no_fresh_memory(in_fresh_process: Callable[[str], str]) -> None:
    """Nor does a context for each call; ever larger shapes share blocks, and threads have their own."""
    in_fresh_process("""
ctx = msctx.context(conv_fprop_algo="gemm", fallback="error")
for scope, each in ((ctx, contextlib.nullcontext()), (contextlib.nullcontext(), ctx)):
    with scope:
        for i in range(13):
            if i == 3:
                before = faults()
            with each:
                y = fn.conv2d(x, w)
        assert faults() - before < 1000, faults() - before  # 2500 a call otherwise
assert ctx.choices()[0].workspace > 10**7

# Blocks of exact sizes, each larger than the holes that those before leave, would add up
inputs = [torch.randn(1, 32, 8, 60 + i) for i in range(200)]
with msctx.context(conv_fprop_algo="gemm", fallback="error", memory_optimize_level="O0"):
    fn.conv2d(inputs[0], w)
    before = faults()
    for one in inputs:
        fn.conv2d(one, w)
    touched = faults() - before
assert touched < 15000, touched  # 80000 otherwise

def work(number):
    own, v = torch.randn(1, 8, 20 + number, 30), torch.randn(4, 8, 3, 3)
    first = fn.conv2d(own, v)
    assert all(torch.equal(fn.conv2d(own, v), first) for _ in range(50)), number

with ctx, ThreadPoolExecutor(6) as pool:
    list(pool.map(work, range(6)))
""")


def test_it_is_given_back_when_the_context_is_left_and_what_is_idle_is_bounded(in_fresh_process: Callable[[str], str]) -> None:
    in_fresh_process("""
with msctx.context(conv_fprop_algo="gemm"):
    fn.conv2d(x, w)
small = resident()
with msctx.context(conv_fprop_algo="gemm"):
    fn.conv2d(torch.randn(1, 32, 256, 256), w)
    inside = resident()
assert inside - small > 60 * 2**20, inside - small
assert resident() - small < 30 * 2**20, resident() - small

start = resident()
with msctx.context(conv_fprop_algo="gemm"):  # images of ever other sizes, each with a workspace of some 70 MB
    for i in range(12):
        fn.conv2d(torch.randn(1, 32 * (i % 6 + 1), 512 // (i % 6 + 1), 150 + i), torch.randn(1, 32 * (i % 6 + 1), 3, 3))
    assert resident() - start < 2**20 * 400, resident() - start
""")

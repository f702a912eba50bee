"""When a precision policy holds: beside torch.autocast, in threads, in what modes; and what it leaves behind."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress

import pytest
import torch
from context_helpers import in_thread
from recorded import Recorded, each_mode
from torch.optim import optimizer

import msctx

pytestmark = pytest.mark.usefixtures("one_thread")
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def product(x=None):
    x = torch.ones(4, 4) if x is None else x
    return (x @ x).dtype


def test_the_innermost_of_policies_and_autocasts_governs():
    with msctx.context(precision_mode="allow_mix_precision_bf16"):
        with torch.autocast("cpu", FP16):
            assert product() == FP16
            with msctx.context(precision_mode="must_keep_origin_dtype"):
                assert product() == FP32
                with torch.autocast("cpu", FP16):
                    assert product() == FP16
            with msctx.context(precision_mode="allow_mix_precision_bf16"):
                assert product() == BF16
            assert product() == FP16
        with torch.autocast("cpu", BF16):  # its own lists: torch's leave exp in 16 bits on a CPU
            assert product() == BF16
            assert torch.ones(4).bfloat16().exp().dtype == BF16
        with torch.autocast("cpu", enabled=False):
            assert product() == FP32
        assert product() == BF16
        assert torch.ones(4).bfloat16().exp().dtype == FP32
    with msctx.context(precision_mode="allow_mix_precision_fp16"), torch.autocast("cpu"):
        assert product() == FP16, "without a dtype it inherits"


@pytest.mark.parametrize("mode", ["force_fp32", "must_keep_origin_dtype", "allow_mix_precision_bf16"])
def test_an_autocast_that_overrides_the_policy_is_reported_once_in_a_context(mode):
    def run(ctx):
        with ctx:
            for autocast in (torch.autocast("cpu", enabled=False), *[torch.autocast("cpu", BF16)] * 2):
                with autocast:
                    product()

    for _ in range(2):
        with pytest.warns(msctx.MsctxWarning) as found:
            run(ctx := msctx.context(precision_mode=mode))
        text = f"torch.autocast('cpu', dtype=bfloat16) overrides precision_mode={mode}"
        assert [str(w.message).partition(" for ")[0] for w in found] == [text]
        assert ("matmul", "bfloat16", 2, "torch.autocast") in [(r.operator, r.dtype, r.calls, r.why) for r in ctx.precisions()]


def state():
    """All that a policy changes in torch; and how many hooks on optimizers there are."""
    autocasts = [(torch.is_autocast_enabled(n), torch.get_autocast_dtype(n)) for n in ("cpu", "cuda", "ipu", "maia")]
    hooks = len(optimizer._global_optimizer_pre_hooks), len(optimizer._global_optimizer_post_hooks)
    return autocasts, torch.compiler.config.cache_key_tag, torch.set_autocast_cache_enabled, hooks


def test_all_is_put_back():
    before = state()
    with torch.autocast("cpu", FP16):
        inside = state()
        with suppress(ZeroDivisionError), msctx.context(precision_mode="allow_mix_precision_bf16"):
            assert all(one != other for one, other in zip(state(), inside, strict=True))
            hooks = state()[3]
            with msctx.context(precision_mode="force_fp32"):
                assert state()[3] == hooks
            _ = 1 / 0
        assert state() == inside
    assert state() == before


def test_set_context_holds_until_it_is_reset():
    before = sum(row.calls for row in msctx.precisions() if row.operator == "matmul")
    try:
        with torch.autocast("cpu", BF16):
            msctx.set_context(precision_mode="force_fp16")
            assert product() == FP16
        assert product() == FP16, "after the autocast in which it was set, too"
        with msctx.context(precision_mode="must_keep_origin_dtype"):
            assert product() == FP32
        msctx.set_context(precision_mode="allow_mix_precision_bf16")
        assert product() == BF16
        assert sum(row.calls for row in msctx.precisions() if row.operator == "matmul") == before + 3
    finally:
        msctx.reset_context()
    assert product() == FP32


def test_policies_are_thread_local():
    barrier = threading.Barrier(2)

    def work(mode):
        with msctx.context(precision_mode=mode):
            barrier.wait(30)
            found = product()
            barrier.wait(30)
            return found

    def half():
        return product(torch.ones(2, 2).half())

    with msctx.context(precision_mode="force_fp32") as ctx, ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, ("allow_mix_precision_fp16", "allow_mix_precision_bf16"))) == [FP16, BF16]
        assert (in_thread(half), in_thread(ctx.bind(half))) == (FP16, FP32)


@each_mode
def test_torchscript_has_the_dtypes_of_eager_code(mode):
    def both(x):
        return x @ x, torch.softmax(x @ x, -1)

    x = torch.randn(4, 4)
    before = torch.jit.script(both)
    before(x)
    with msctx.context(precision_mode=mode):
        inside = torch.jit.script(both)
        for _ in range(3):  # the profiling executor makes it anew
            expected = [found.dtype for found in both(x)]
            assert [found.dtype for found in before(x)] == expected
            assert [found.dtype for found in inside(x)] == expected
    with torch.autocast("cpu"):
        assert before(x)[0].dtype == BF16
    assert before(x)[0].dtype == FP32


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, 0.01, foreach=False),
    "fused Adam": lambda p: torch.optim.Adam(p, 0.01, fused=True),
    "Adafactor": lambda p: torch.optim.Adafactor(p, 0.01),
    "LBFGS": lambda p: torch.optim.LBFGS(p, 0.1, max_iter=4),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_compute_as_without_a_policy(name):
    torch.manual_seed(0)
    parameters = [[torch.randn(4, 4).requires_grad_(), torch.randn(4).requires_grad_()]]
    parameters.append([p.detach().clone().requires_grad_() for p in parameters[0]])
    gradients = [[torch.randn_like(p) * 1e-3 for p in parameters[0]] for _ in range(3)]
    for these, scope in zip(parameters, (nullcontext(), msctx.context(precision_mode="force_fp16")), strict=True):
        made = OPTIMIZERS[name](these)
        for step in gradients:

            def closure(these=these, step=step):
                for p, g in zip(these, step, strict=True):
                    p.grad = g.clone()
                return torch.zeros(())

            with scope:
                made.step(closure)
    for one, other in zip(*parameters, strict=True):
        assert torch.equal(one, other)


def test_torch_own_autocast_is_as_before_once_policies_were_in_use():
    with msctx.context(precision_mode="force_fp16"):
        product()
    x = torch.randn(4, 4)
    with torch.autocast("cpu", BF16), Recorded() as seen:
        y = x @ x
        assert (y.dtype, torch.softmax(y.exp(), -1).dtype) == (BF16, BF16), "torch's list for CPUs leaves them"
    assert ("mm", (BF16, BF16)) in seen.calls

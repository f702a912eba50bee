"""What algorithms make of weights is kept: results are those of a fresh copy, however a weight was changed, and memory is bounded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from convs import bits, conv
from torch import Tensor, nn
from torch.nn import functional as fn
from weights import CHANGES, WINOGRAD, X, counted, fresh, weight

import msctx

pytestmark = pytest.mark.usefixtures("one_thread")


def is_fresh(y: Tensor, w: Tensor) -> bool:
    return bits([y]) == bits([fresh(X, w)])


@pytest.fixture
def ctx() -> Iterator[msctx.Context]:
    with msctx.context(**WINOGRAD) as context, torch.no_grad():
        yield context


def test_a_weight_is_prepared_once(ctx: msctx.Context) -> None:
    w = weight()
    first = fn.conv2d(X, w)
    assert counted(ctx) == (0, 1)
    for count in (1, 2, 3):
        assert bits([fn.conv2d(X, w)]) == bits([first])
        assert counted(ctx) == (count, 1)
    assert bits([fresh(X, w)]) == bits([first])
    assert counted(ctx) == (3, 2)


@pytest.mark.parametrize("name", ["winograd", "winograd_nonfused"])
@pytest.mark.parametrize("taps", [3, 5])
def test_one_form_serves_all_sizes_of_images(name: str, taps: int) -> None:
    w = weight(5, 6, taps, taps)
    with msctx.context(conv_fprop_algo=name, fallback="error") as ctx, torch.no_grad():
        for shape in ((2, 6, 9, 10), (1, 6, 9, 10), (3, 6, 20, 7)):
            x = torch.randn(shape)
            assert bits([fn.conv2d(x, w)]) == bits([fresh(x, w)])
    assert counted(ctx) == (2, 4), "one for w, and one for each copy"


@pytest.mark.parametrize("name", ["fft", "fft_tiling"])
def test_spectra_serve_one_size_of_images(name: str) -> None:
    """And any number of them; each direction has its own."""
    w, scope = weight(), msctx.context(conv_fprop_algo=name, conv_dgrad_algo=name, fallback="error")

    def results(x: Tensor, w: Tensor) -> list[Tensor]:
        x = x.clone().requires_grad_()
        y = fn.conv2d(x, w)
        (dx,) = torch.autograd.grad(y.sin().sum(), x)
        return [y.detach(), dx]

    steps = (((2, 9, 10), (0, 1)), ((1, 9, 10), (1, 1)), ((3, 20, 7), (1, 2)), ((5, 9, 10), (2, 2)), ((1, 20, 7), (3, 2)))
    for (n, height, width), counts in steps:
        x = torch.randn(n, 6, height, width)
        with scope:
            found = results(x, w)
        assert counted(scope, "fprop") == counted(scope, "dgrad") == counts
        with msctx.context(conv_fprop_algo=name, conv_dgrad_algo=name):
            assert bits(found) == bits(results(x, w.clone()))
    w[2, 1] *= 2
    with scope:
        changed = results(x, w)
        assert bits(changed) == bits(results(x, w.clone()))
    assert bits(changed[:1]) != bits(found[:1])
    assert counted(scope, "fprop") == counted(scope, "dgrad") == (3, 4)


@pytest.mark.parametrize("name", ["fft", "fft_tiling"])
def test_taps_that_meet_padding_only_may_be_infinite(name: str) -> None:
    """They are not transformed; but zero times Inf is NaN. No spectra are kept: gemm computes such a call."""
    w = weight(4, 6, 3, 3)
    w[1, 0, 0, 2] = torch.inf
    with msctx.context(conv_fprop_algo=name, fallback="error") as ctx, torch.no_grad():
        for _ in range(3):
            y = fn.conv2d(torch.ones(1, 6, 1, 7), w, padding=1)
            assert y[:, 1].isnan().all()
            assert y[:, [0, 2, 3]].isfinite().all()
    assert counted(ctx) == (0, 0)


@pytest.mark.parametrize(
    "problem",
    [
        conv("groups", (2, 6, 8, 7), (9, 2, 3, 3), True, groups=3, padding=1),
        conv("transposed", (2, 4, 7, 6), (4, 5, 3, 3), True, padding=1, transposed=True),
        conv("batchless", (4, 9, 8), (6, 4, 3, 3), True, padding=1),
        conv("empty", (0, 4, 8, 8), (6, 4, 3, 3), True, padding=1),
    ],
    ids=str,
)
def test_same_bits_with_and_without(problem: Any) -> None:
    """``compute`` detaches: the storages, and so the kept weights, are the same."""
    tensors = problem.tensors()
    with msctx.context(**WINOGRAD):
        first = problem.compute([t.clone() for t in tensors])
        for _ in range(3):
            assert bits(problem.compute(tensors)) == bits(first)


def test_counts_are_those_of_the_context_and_of_the_table() -> None:
    w = weight()
    with msctx.context(conv_fprop_algo="winograd") as outer:
        fn.conv2d(X, w)
        assert "kept" not in str(outer.choices()), "no column without need"
        with msctx.context(conv_fprop_algo="winograd", fallback="silent") as inner:
            fn.conv2d(X, w)
            fn.conv2d(X, w)
        fn.conv2d(X, w)
    assert counted(inner) == (2, 0), "kept from the outer scope"
    assert counted(outer) == (3, 1)
    assert "kept" in str(outer.choices()).splitlines()[0]
    (shown,) = outer.choices().as_dicts()
    assert (shown["calls"], shown["weights_kept"], shown["weights_prepared"]) == (4, 3, 1)


# --- what kinds of weights there are -------------------------------------------------------------------------------------


def test_under_inference_mode(ctx: msctx.Context) -> None:
    with torch.inference_mode():
        w = weight()
        for _ in range(3):
            assert bits([fn.conv2d(X, w)]) == bits([fn.conv2d(X, w.clone())])
    assert counted(ctx) == (2, 4)


def test_under_vmap_and_functional_call(ctx: msctx.Context) -> None:
    w = weight()
    many = torch.func.vmap(lambda x: fn.conv2d(x, w))(torch.stack([X, X]))
    torch.testing.assert_close(many[0], fn.conv2d(X, w))
    module = nn.Conv2d(6, 5, 3, bias=False)
    for scale in (1.0, 2.0):
        found = torch.func.functional_call(module, {"weight": w * scale}, (X,))
        assert bits([found]) == bits([fresh(X, w * scale)])
    weights = torch.stack([w, w + 1])
    each = torch.func.vmap(fn.conv2d, in_dims=(None, 0))(X, weights)
    torch.testing.assert_close(each[1], fresh(X, w + 1))


# --- frozen_weights ------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_frozen_weights_are_looked_at_once() -> None:
    """What it promises: a change goes unnoticed while the context is open, not after it, and not where a scope inside looks again."""
    w = weight().requires_grad_()
    with msctx.context(conv_fprop_algo="winograd"):
        fn.conv2d(X, w)
    w.add_(1)
    with msctx.context(conv_fprop_algo="winograd", frozen_weights=True, fallback="error") as ctx:
        before = fn.conv2d(X, w)
        assert is_fresh(before, w), "looked at when the scope opens"
        w.add_(1)
        assert bits([fn.conv2d(X, w)]) == bits([before]), "the weight as it was"
        with msctx.context(frozen_weights=False):
            assert is_fresh(fn.conv2d(X, w), w)
        assert is_fresh(fn.conv2d(X, w), w)
        for change in (CHANGES["an assignment to .data"], CHANGES["set_"], lambda w: w.share_memory_().add_(1)):
            change(w)
            assert is_fresh(fn.conv2d(X, w), w), "one that moves is looked at"
    w.add_(1)
    with msctx.context(conv_fprop_algo="winograd"):
        assert is_fresh(fn.conv2d(X, w), w)
    with ctx:
        assert is_fresh(fn.conv2d(X, w), w)


def test_what_is_no_parameter_is_looked_at_each_time() -> None:
    """Unless a watched module has it."""
    w, layer = weight(), nn.Conv2d(6, 5, 3, bias=False).requires_grad_(False)
    with msctx.context(conv_fprop_algo="winograd", frozen_weights=True, fallback="error") as ctx:
        for one in (w, layer.weight):
            before = fn.conv2d(X, one)
            one.add_(1)
            assert bits([fn.conv2d(X, one)]) != bits([before])
        ctx.watch(layer)
        before = layer(X)
        layer.weight.add_(1)
        assert bits([layer(X)]) == bits([before])


# --- memory, threads, processes ------------------------------------------------------------------------------------------


@pytest.mark.full
def test_memory_is_bounded(passes: Callable[..., str]) -> None:
    """150 weights whose transforms take 4.7 MB each, all of them alive; then they die."""
    passes("""
        import torch, msctx
        from torch.nn import functional as fn

        def resident():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * 4096

        torch.set_num_threads(1)
        x = torch.randn(1, 180, 3, 3)
        base = torch.randn(180, 180, 3, 3)
        weights = torch.randn(180 * 180 * 9 + 1000)
        with msctx.context(conv_fprop_algo="winograd", fallback="error") as ctx, torch.no_grad():
            fn.conv2d(x, base)
            start = resident()
            for i in range(150):  # at as many places of one storage
                fn.conv2d(x, weights[i : i + 180 * 180 * 9].view(180, 180, 3, 3))
            most = resident() - start
            (row,) = ctx.choices()
            assert (row.weights_kept, row.weights_prepared) == (0, 151)
            assert 2**28 < most < 600 * 2**20, most
            fn.conv2d(x, base)
            assert ctx.choices()[0].weights_kept == 0, "the one used longest ago had to go"
            fn.conv2d(x, weights[149 : 149 + 180 * 180 * 9].view(180, 180, 3, 3))
            assert ctx.choices()[0].weights_kept == 1
            del weights
            fn.conv2d(x, base.clone())  # what belongs to the dead goes when something comes
        assert resident() - start < 64 * 2**20, resident() - start
    """)


def test_many_small_weights(ctx: msctx.Context) -> None:
    weights = [weight() for _ in range(1100)]
    for _ in range(2):
        for w in weights:
            fn.conv2d(X, w)
    assert counted(ctx)[1] >= 1100
    assert all(bits([fn.conv2d(X, w)]) == bits([fresh(X, w)]) for w in weights[::100])


def test_threads_that_change_and_use_weights() -> None:
    """One weight for all, which one of them changes between rounds, and one for each."""
    shared, barrier = weight(), threading.Barrier(4)

    def work(number: int) -> None:
        own = weight()
        for turn in range(20):
            if number == 0:
                shared.mul_(0.9)
            own[turn % 5] += 1
            barrier.wait(60)
            for w in (shared, own, shared):
                assert is_fresh(fn.conv2d(X, w), w), (number, turn)
            barrier.wait(60)

    with msctx.context(conv_fprop_algo="winograd", fallback="error"), ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_same_bits_for_any_number_of_threads(count: int, threads: Callable[[int], Any]) -> None:
    """A weight of several megabytes, whose fingerprint all threads compute."""
    w, x = weight(300, 300, 3, 3), torch.randn(1, 300, 6, 6)
    with msctx.context(conv_fprop_algo="winograd", fallback="error") as ctx, torch.no_grad():
        right = fn.conv2d(x, w)
        with threads(count):
            assert bits([fn.conv2d(x, w)]) == bits([right])
            assert counted(ctx) == (1, 1)
            w[299, 299, 2, 2] += 1
            assert bits([fn.conv2d(x, w)]) == bits([fresh(x, w)]) != bits([right])


@pytest.mark.full
def test_a_forked_child_has_them_and_goes_its_own_way(passes: Callable[..., str]) -> None:
    passes("""
        import os, torch, msctx
        from torch.nn import functional as fn

        x, w = torch.randn(2, 6, 9, 10), torch.randn(5, 6, 3, 3)
        with msctx.context(conv_fprop_algo="winograd", fallback="error") as ctx, torch.no_grad():
            right = fn.conv2d(x, w)
            for change in (0.0, 1.0):
                if (pid := os.fork()) == 0:
                    w.add_(change)
                    ok = torch.equal(fn.conv2d(x, w), fn.conv2d(x, w.clone())) and torch.equal(fn.conv2d(x, w), right) == (not change)
                    os._exit(0 if ok else 1)
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            assert torch.equal(fn.conv2d(x, w), right)
            assert ctx.choices()[0].weights_kept == 1
    """)


@pytest.mark.full
def test_they_make_room_where_memory_runs_out(passes: Callable[..., str]) -> None:
    passes(
        """
        import resource, torch, msctx
        from torch.nn import functional as fn

        torch.set_num_threads(1)
        large = torch.randn(1024, 1024, 3, 3)  # its transform takes 150 MB
        weights = torch.randn(32, 180, 180, 3, 3)
        with msctx.context(conv_fprop_algo="winograd", fallback="error") as ctx, torch.no_grad():
            for w in weights:  # 150 MB
                fn.conv2d(torch.randn(1, 180, 3, 3), w)
            fn.conv2d(torch.randn(1, 180, 3, 3), weights[0])
            assert sum(row.weights_kept for row in ctx.choices()) == 1
            with open("/proc/self/statm") as file:
                now = int(file.read().split()[0]) * 4096
            resource.setrlimit(resource.RLIMIT_AS, (now + 100 * 2**20,) * 2)
            x = torch.randn(1, 1024, 3, 3)
            found = fn.conv2d(x, large)
            fn.conv2d(torch.randn(1, 180, 3, 3), weights[0])
            assert sum(row.weights_kept for row in ctx.choices()) == 1, "all of them had to go"
        assert torch.allclose(found.double(), fn.conv2d(x.double(), large.double()), atol=1e-2)
        """,
        env={"MALLOC_MMAP_THRESHOLD_": "1048576"},
    )


@pytest.mark.full
def test_empty_cache_gives_back_what_was_made_of_a_weight_that_is_gone(passes: Callable[..., str]) -> None:
    passes("""
import torch, msctx
def held():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
w = torch.randn(256, 256, 3, 3)
with torch.no_grad(), msctx.context(conv_fprop_algo="winograd"):
    torch.nn.functional.conv2d(torch.randn(1, 256, 14, 14), w)
del w
before = held()
msctx.empty_cache()
assert before - held() > 7e6, "its transform holds four times as much as the weight of 2.4 MB"
""")

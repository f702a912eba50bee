"""What algorithms make of weights is kept: results are those of a fresh copy, however a weight was changed, and memory is bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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


# --- what kinds of weights there are -------------------------------------------------------------------------------------


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

"""What algorithms made of a weight is never used again once the weight has changed, however that was done."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from convs import bits
from torch import Tensor, nn
from torch.nn import functional as fn
from weights import CHANGES, WINOGRAD, Change, X, counted, fresh, weight

import msctx

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def ctx() -> Iterator[msctx.Context]:
    with msctx.context(**WINOGRAD) as context, torch.no_grad():
        yield context


PACKED = {"conv_fprop_algo": "implicit_precomp_gemm", "fallback": "error"}
FORMS: dict[str, dict[str, Any]] = {"winograd": WINOGRAD, "packed": PACKED, "TF32": {**PACKED, "conv_allow_tf32": True}}


@pytest.mark.parametrize("options", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_noticed(options: dict[str, Any], change: Change) -> None:
    w = weight()
    w[0, 0, 0, 0] = 0
    with msctx.context(**options) as ctx, torch.no_grad():
        fn.conv2d(X, w)
        fn.conv2d(X, w)
        is_kept = counted(ctx) != (0, 0)  # nothing is packed without a matrix unit
        for _ in range(2):
            change(w)
            found, (kept, prepared) = fn.conv2d(X, w), counted(ctx)
            assert bits([fn.conv2d(X, w)]) == bits([found])
            assert (counted(ctx)[0] > kept) == is_kept, "kept again after the change"
            assert counted(ctx)[1] == prepared
            assert bits([found]) == bits([fresh(X, w)])
    assert is_kept or options is not WINOGRAD


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam], ids=["SGD", "Adam"])
def test_steps_of_an_optimizer_are_noticed(make: Any, fused: bool) -> None:
    """Fused ones leave the version counter as it is."""
    x, w = X.clone().requires_grad_(), nn.Parameter(weight())
    optimizer = make([w], lr=0.1, fused=fused)
    with msctx.context(**WINOGRAD) as ctx:
        for step in range(4):
            y = fn.conv2d(x, w)
            assert bits([y.detach()]) == bits([fresh(X, w)])
            x.grad = w.grad = None
            y.square().sum().backward()
            again = X.clone().requires_grad_()
            fn.conv2d(again, w.detach().clone()).square().sum().backward()
            assert bits([x.grad]) == bits([again.grad]), step
            optimizer.step()
    assert counted(ctx, "fprop")[0] == counted(ctx, "dgrad")[0] == 0


def test_weights_that_share_a_storage(ctx: msctx.Context) -> None:
    """Parameters in one flat buffer: each has its own place, and a change of one is none of the other."""
    flat = torch.randn(2 * 270)
    a, b = flat[:270].view(5, 6, 3, 3), flat[270:].view(5, 6, 3, 3)
    for w in (a, b, a, b):
        assert bits([fn.conv2d(X, w)]) == bits([fresh(X, w)])
    kept = counted(ctx)[0]
    assert kept == 2
    flat.data[300] += 1  # which no version counter sees
    for w in (a, b):
        assert bits([fn.conv2d(X, w)]) == bits([fresh(X, w)])
    assert counted(ctx)[0] == kept + 1, "a's is still good"


def test_a_weight_in_channels_last_with_the_same_values(ctx: msctx.Context) -> None:
    w = weight()
    last = w.contiguous(memory_format=torch.channels_last)
    right = fn.conv2d(X, w)
    for count in (0, 1, 2):
        assert bits([fn.conv2d(X, last)]) == bits([right])
        assert counted(ctx) == (count, 2)
    last[1] += 1
    assert bits([fn.conv2d(X, last)]) == bits([fresh(X, last.contiguous())])


def test_another_memory_under_the_same_storage(ctx: msctx.Context) -> None:
    """share_memory_ moves the values, and then anybody may change them there."""
    w = weight()
    fn.conv2d(X, w)
    w.share_memory_()
    assert bits([fn.conv2d(X, w)]) == bits([fresh(X, w)])
    assert counted(ctx)[0] == 1, "the same values"
    w.add_(1)
    assert bits([fn.conv2d(X, w)]) == bits([fresh(X, w)])


def _write(w: Tensor) -> None:
    w[1, 2, 0, 2] = 7.0


def test_what_another_process_writes_is_noticed(ctx: msctx.Context) -> None:
    w = weight().share_memory_()
    before = fn.conv2d(X, w)
    process = torch.multiprocessing.get_context("fork").Process(target=_write, args=(w,))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert w[1, 2, 0, 2] == 7.0
    after = fn.conv2d(X, w)
    assert bits([after]) == bits([fresh(X, w)]) != bits([before])

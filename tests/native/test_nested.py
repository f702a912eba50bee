"""Scopes that change how an outer scope's algorithms are to be carried out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as fn

import msctx

X, W = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)


def gradient() -> None:
    x = X.clone().requires_grad_()
    fn.conv2d(x, W).sum().backward()


def test_determinism_reaches_what_an_outer_scope_asked_for() -> None:
    with msctx.context(conv_dgrad_algo="algo_0") as outer:
        with pytest.warns(msctx.MsctxWarning, match=r"conv_dgrad_algo='algo_0'.*deterministic=ON"):
            inner = msctx.context(deterministic="ON").__enter__()
        gradient()
        inner.__exit__()
        assert not inner.choices(), "a policy is in force where nothing is asked for"
        gradient()
    assert [row.ran for row in outer.choices()] == ["algo_0"]


def test_determinism_reaches_what_set_context_asked_for() -> None:
    msctx.set_context(conv_wgrad_algo="algo_3")
    try:
        w = W.clone().requires_grad_()
        with pytest.warns(msctx.MsctxWarning, match="deterministic=ON"), msctx.context(deterministic="ON") as ctx:
            fn.conv2d(X, w).sum().backward()
        assert not ctx.choices()
    finally:
        msctx.reset_context()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_thread_invariant_measures_nothing(dtype: torch.dtype) -> None:
    with msctx.context(thread_invariant=True, conv_fprop_algo="performance") as ctx:
        fn.conv2d(X.to(dtype), W.to(dtype))
    (row,) = ctx.choices()
    assert row.provider == "msctx"
    assert row.reasons[0].startswith("chosen as by normal: nothing is measured under thread_invariant=True")


def test_under_determinism_normal_does_not_depend_on_the_number_of_threads(threads: Callable[[int], Any]) -> None:
    ran = set()
    for count in (1, 3):
        with threads(count), msctx.context(deterministic="ON", conv_fprop_algo="normal", conv_workspace_limit=500_000) as ctx:
            fn.conv2d(torch.randn(1, 32, 56, 56), torch.randn(32, 32, 3, 3), padding=1)
        ran.add(ctx.choices()[0].ran)
    assert len(ran) == 1


def test_extents_that_no_memory_holds_are_torchs_own_affair() -> None:
    t = torch.ones(1, 1, 3, 3)
    own = fn.conv2d(t, t, dilation=2**62, padding=1).shape
    for name in ("winograd", "normal", "gemm", "fft"):
        with msctx.context(conv_fprop_algo=name, fallback="silent"):
            assert fn.conv2d(t, t, dilation=2**62, padding=1).shape == own

"""choices(): which calls it holds, what each column means, and how it prints."""

import dataclasses
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from convs import GEMM, PLANE, Conv, asking, conv, row_of
from torch import nn
from torch.nn import functional as fn

import msctx
from msctx.native.policy_and_choices import Choice, Choices

pytestmark = pytest.mark.usefixtures("one_thread")
X, W = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)


def calls(made: Choices) -> dict[tuple[str, str], int]:
    return {(row.requested, row.ran): row.calls for row in made}


def test_the_columns_of_a_row() -> None:
    x, w = X.contiguous(memory_format=torch.channels_last), torch.randn(6, 1, 3, 3, requires_grad=True)
    with msctx.context(**GEMM) as ctx:
        fn.conv2d(x, w, stride=(2, 1), padding=(1, 0), dilation=1, groups=3).sum().backward()
    forward, backward = row_of(ctx.choices(), "fprop"), row_of(ctx.choices(), "wgrad")
    assert len(ctx.choices()) == 2
    problem = forward.problem
    assert (problem.input, problem.weight) == ((2, 3, 8, 8), (6, 1, 3, 3))
    assert (problem.stride, problem.padding, problem.dilation, problem.output_padding) == ((2, 1), (1, 0), (1, 1), (0, 0))
    assert (problem.groups, problem.transposed, problem.dtype, problem.layout) == (3, False, "float32", "channels_last")
    assert (forward.module, forward.requested, forward.ran, forward.provider) == ("", "gemm", "gemm", "msctx")
    assert forward.math == "strict"
    assert (backward.requested, backward.ran, backward.problem) == ("algo_1", "algo_1", problem)
    assert forward.workspace > 0
    assert forward.error is not None
    assert 0 < forward.error < 1e-5
    assert (forward.calls, forward.reasons) == (1, ())
    names = [field.name for field in dataclasses.fields(Choice)]
    assert [*forward.as_dict()] == names
    columns = "direction problem epilogue module requested ran provider math error workspace calls"
    assert names == [*columns.split(), "weights_kept", "weights_prepared", "reasons"]


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (PLANE, "2x4x9x8 * 6x4x3x3, float32, padding 1, channels_first"),
        (conv("1d", (2, 3, 9), (4, 3, 3), stride=2), "2x3x9 * 4x3x3, float32, stride 2, channels_first"),
        (
            conv("t", (1, 2, 4, 4), (2, 3, 2, 2), stride=(2, 1), output_padding=(1, 0), dilation=2, transposed=True),
            "1x2x4x4 * 2x3x2x2, float32, transposed, stride 2x1, dilation 2, output_padding 1x0, channels_first",
        ),
        (conv("3d", (2, 4, 5, 6, 7), (6, 2, 1, 2, 3), groups=2), "2x4x5x6x7 * 6x2x1x2x3, float32, groups 2, channels_first"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_problem_in_words(problem: Conv, text: str) -> None:
    with asking("fprop", "gemm") as ctx:
        problem.run(*problem.tensors()[:2], **problem.options)
    (row,) = ctx.choices()
    assert str(row.problem) == text


def test_every_call_is_counted_once() -> None:
    x, ctx = X.clone().requires_grad_(), msctx.context(**GEMM)
    with ctx:
        for _ in range(5):
            y = fn.conv2d(x, W)
        for _ in range(3):
            y.sum().backward(retain_graph=True)
    assert {r.direction: r.calls for r in ctx.choices()} == {"fprop": 5, "dgrad": 3}
    with ctx, ThreadPoolExecutor(4) as pool:  # one that is entered again adds up
        list(pool.map(lambda _: [fn.conv2d(X, W) for _ in range(200)], range(4)))
        assert {r.direction: r.calls for r in ctx.choices()} == {"fprop": 805, "dgrad": 3}
    fn.conv2d(X, W)
    ctx(lambda: fn.conv2d(X, W))()
    with ctx, ctx:  # inside itself each call counts once
        fn.conv2d(X, W)
    assert {r.direction: r.calls for r in ctx.choices()} == {"fprop": 807, "dgrad": 3}


def test_without_an_algorithm_there_are_no_rows() -> None:
    with msctx.context(deterministic="ON") as ctx:
        fn.conv2d(X, W)
    assert not ctx.choices()
    assert str(ctx.choices()) == "no convolution or matmul has run under an option for its algorithm"
    assert not asking("fprop", "gemm").choices(), "never entered"


def test_nested_scopes() -> None:
    """An outer context holds what ran while it was open, whichever policy was in force then."""
    with asking("fprop", "gemm") as outer:
        fn.conv2d(X, W)
        with asking("fprop", "direct") as inner:
            fn.conv2d(X, W)
            with msctx.context(conv_dgrad_algo="algo_1") as innermost:
                fn.conv2d(X, W)
        fn.conv2d(X, W)
    assert calls(innermost.choices()) == {("direct", "direct"): 1}
    assert calls(inner.choices()) == {("direct", "direct"): 2}
    assert calls(outer.choices()) == {("gemm", "gemm"): 2, ("direct", "direct"): 2}


def test_it_prints_as_a_table() -> None:
    x = torch.randn(2, 3, 8, 23)  # no other test has met it: rows stand in the order in which the process met them
    with asking("fprop", "winograd", fallback="silent") as ctx:
        fn.conv2d(x, W)
        fn.conv2d(x, W, stride=2)
    text = str(ctx.choices())
    assert text == repr(ctx.choices())
    header, _, first, second, reason = text.splitlines()
    assert header.split() == ["direction", "problem", "requested", "ran", "by", "math", "error", "workspace", "calls"]
    assert "2x3x8x23 * 4x3x3x3, float32, channels_first" in first
    assert first.split()[-7:-3] == ["winograd", "winograd", "msctx", "strict"] or " msctx " in first
    assert " torch " in second
    assert reason.strip() == "winograd: it needs stride 1; this layer has 2"


def test_what_was_computed_again_is_shown() -> None:
    x = torch.randn(1, 3, 9, 7)
    x[0, 0, 4, 4] = float("inf")
    with asking("fprop", "fft") as ctx:
        fn.conv2d(x, W)
    (row,) = ctx.choices()
    assert any("does not carry" in reason and "gemm" in reason for reason in row.reasons)


def test_names_of_any_characters_reach_the_core_and_come_back() -> None:
    name = 'q"é\\ \t]}'
    model = nn.Sequential(OrderedDict({name: nn.Conv2d(1, 1, 3)}))
    with msctx.context(conv_algo_rules='q"é\\\\??]}: fprop=direct') as ctx:
        ctx.watch(model)
        model(torch.ones(1, 1, 4, 4))
    assert [(row.module, row.ran) for row in ctx.choices()] == [(name, "direct")]


@pytest.mark.full
def test_the_log_is_bounded_and_shows_what_it_dropped(passes: Callable[..., str]) -> None:
    passes("""
import os, torch, msctx
from torch.nn import functional as fn

torch.set_num_threads(1)

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE")

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
""")

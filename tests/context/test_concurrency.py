"""Scopes of several threads at once: what overlaps is refused, what does not is independent, and dead threads block nobody."""

import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from context_helpers import Elsewhere, OwnError, State, context_module, in_thread, threads
from torch import nn

import msctx
from msctx.context import ledger
from msctx.context.ledger import HELD
from msctx.errors import MsctxWarning, ScopeError
from msctx.native import watched_models


def test_overlapping_scopes_in_two_threads(exact_state: State) -> None:
    before = exact_state()
    with Elsewhere() as other:
        theirs = msctx.context(runtime_num_threads=1)
        other.do(theirs.__enter__)
        inside = exact_state()
        with pytest.raises(ScopeError, match=r"torch\.num_threads belongs to the whole process.*msctx\.current\(\)\.bind"):
            msctx.context(runtime_num_threads=1).__enter__()
        with pytest.raises(ScopeError, match=r"torch\.num_threads"):
            msctx.context(deterministic="ON", runtime_num_threads=2).__enter__()
        assert exact_state() == inside
        assert context_module.stack.scopes == []
        with msctx.context(max_call_depth=3000, deterministic="ON"):  # these do not overlap
            assert torch.are_deterministic_algorithms_enabled()
        assert exact_state() == inside
        other.do(theirs.__exit__)
        with msctx.context(runtime_num_threads=1):
            assert threads() == 1
    assert exact_state() == before


def test_a_thread_born_inside_a_scope_restores_what_later_threads_get() -> None:
    """It keeps the scope's number of threads as its own; what it puts back must not become everybody's."""
    found = threads()
    with Elsewhere() as other:
        with msctx.context(runtime_num_threads=found + 1):
            assert other.do(threads) == found + 1
        assert in_thread(threads) == found
        other.do(msctx.context(runtime_num_threads=found + 2)(threads))
        assert in_thread(threads) == found
        assert threads() == found


def test_many_threads_at_once(exact_state: State) -> None:
    before = exact_state()
    options: list[dict[str, Any]] = [
        {"deterministic": "ON"},
        {"deterministic": "OFF", "max_call_depth": 77},
        {"max_call_depth": 5000},
        {"pynative_synchronize": True},
        {"device_target": "CPU", "default_device": True},
        {"seed_scope": True},
    ]
    counts = {"entered": 0, "refused": 0}

    def work(number: int) -> None:
        chance = random.Random(number)
        for _ in range(60):
            try:
                with msctx.context(**chance.choice(options)), msctx.context(**chance.choice(options)):
                    counts["entered"] += 1
                    if chance.random() < 0.2:
                        raise OwnError
            except ScopeError:
                counts["refused"] += 1
            except OwnError:
                pass
            assert context_module.stack.scopes == []

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(work, number) for number in range(4)]:
                done.result(60)
    finally:
        sys.setswitchinterval(interval)
    assert counts["entered"] > 20
    assert counts["refused"] > 20
    assert exact_state() == before


NEVER_LEFT = "was never left: the thread .* has ended inside it"


def test_a_scope_that_a_dead_thread_left_open_blocks_nobody(exact_state: State) -> None:
    before = exact_state()
    thread = threading.Thread(target=msctx.context(max_call_depth=77).__enter__)
    thread.start()
    thread.join()
    try:
        with pytest.warns(MsctxWarning, match=NEVER_LEFT), msctx.context(max_call_depth=99):
            assert msctx.get_context("max_call_depth") == 99
    finally:
        for hold in {id(h): h for holds in HELD.values() for h in holds}.values():
            ledger.undo(hold, quiet=True)
    assert exact_state() == before


@pytest.mark.parametrize("options", [{}, {"precision_mode": "force_fp16", "memory_optimize_level": "O1"}], ids=["", "options"])
def test_a_scope_whose_thread_has_ended_ends_when_all_is_taken_back(options: dict[str, Any]) -> None:
    """Its models are watched no longer, and it counts nothing more; it can be entered again."""
    model, ctx = nn.Conv2d(1, 1, 1), msctx.context(**options)
    thread = threading.Thread(target=ctx.watch(model).__enter__)
    thread.start()
    thread.join()
    assert watched_models.models() == [model]
    with pytest.warns(MsctxWarning, match=NEVER_LEFT):
        msctx.reset_context()
    assert watched_models.models() == []
    with ctx:
        model(torch.ones(1, 1, 1, 1))
    counted = [*ctx.choices(), *ctx.precisions()]
    with msctx.context(conv_fprop_algo="gemm", precision_mode="allow_mix_precision_bf16"):
        model(torch.ones(1, 1, 1, 1))
    assert [*ctx.choices(), *ctx.precisions()] == counted
    with ctx:
        assert watched_models.models() == [model]
    assert watched_models.models() == []

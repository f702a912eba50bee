"""with-blocks: entered, left, nested and entered again, each level restored; left in the wrong order or from elsewhere."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from statistics import median
from typing import Any

import pytest
import torch
from context_helpers import OwnError, State, context_module, in_thread, threads

import msctx
from msctx.errors import MsctxWarning, RestoreError, ScopeError


def test_with_block(exact_state: State) -> None:
    before = exact_state()
    with msctx.context(runtime_num_threads=1, deterministic="ON") as ctx:
        assert threads() == 1
        assert torch.are_deterministic_algorithms_enabled()
        assert msctx.current() is ctx
        assert ctx.get("deterministic") == "ON"
        assert str(ctx.device) == "cpu"
    assert exact_state() == before
    assert msctx.current() is not ctx


@pytest.mark.parametrize("error", [OwnError, KeyboardInterrupt, SystemExit])
def test_with_block_left_by_an_exception(exact_state: State, error: type[BaseException]) -> None:
    before = exact_state()

    def fail() -> None:
        with msctx.context(deterministic="ON"), msctx.context(runtime_num_threads=1, max_call_depth=9000):
            raise error

    with pytest.raises(error):
        fail()
    assert exact_state() == before


def test_a_context_does_nothing_before_it_is_entered(exact_state: State) -> None:
    before = exact_state()
    ctx = msctx.context(deterministic="ON")
    assert exact_state() == before
    with ctx:
        assert exact_state() != before


def test_a_coroutine_may_use_a_with_block() -> None:
    async def work() -> int:
        with msctx.context(runtime_num_threads=1):
            return threads()

    assert asyncio.run(work()) == 1


def test_nesting(exact_state: State) -> None:
    states = [exact_state()]
    with ExitStack() as stack:
        for options in (
            {"runtime_num_threads": 1},
            {"deterministic": "ON"},
            {"deterministic": "OFF", "runtime_num_threads": 2},
            {"max_call_depth": 5000},
            {"deterministic": "ON", "fill_uninitialized_memory": False},
        ):
            stack.enter_context(msctx.context(**options))
            stack.callback(lambda expected: states.append(exact_state() == expected), exact_state())
        assert threads() == 2
        assert torch.are_deterministic_algorithms_enabled()
    assert states[1:] == [True] * 5
    assert exact_state() == states[0]


@contextmanager
def calls() -> Iterator[list[int]]:
    """Counts calls, of built-in functions and of comprehensions too, and of whatever Python code the core calls back."""
    counted = [0]

    def count(frame: Any, event: str, argument: Any) -> None:
        counted[0] += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield counted
    finally:
        sys.setprofile(before)


def calls_to_enter(depth: int, name: str) -> int:
    """Nested contexts that no other was like."""
    with ExitStack() as open_ones:
        contexts = [msctx.context(**{name: value}) for value in range(1000 * depth, 1001 * depth)]
        with calls() as counted:
            for context in contexts:
                open_ones.enter_context(context)
    return counted[0]


@pytest.mark.parametrize("name", ["max_call_depth", "hccl_timeout"])
@pytest.mark.filterwarnings("ignore:hccl_timeout")
def test_entering_costs_the_same_at_any_depth(name: str) -> None:
    """hccl_timeout may have to yield to another option; max_call_depth has nothing to do with any."""
    calls_to_enter(2, name)
    shallow, deep = calls_to_enter(50, name), calls_to_enter(100, name)
    assert deep < 2.3 * shallow, "it grows with the depth"


@pytest.mark.parametrize("algorithm", ["performance", "normal", "gemm"])
def test_a_step_costs_the_same_after_many_problems_and_contexts(algorithm: str) -> None:
    """deterministic="ON" keeps ``performance`` from measuring."""

    def step() -> int:
        with calls() as counted, msctx.context(conv_fprop_algo=algorithm, deterministic="ON"):
            torch.nn.functional.conv2d(x, w)
        return counted[0]

    x, w = torch.ones(1, 1, 4, 4), torch.ones(1, 1, 1, 1)
    for _ in range(3):
        step()
    first = [step() for _ in range(9)]
    for width in range(1005, 1305):  # other tests count their own problems
        with msctx.context(conv_fprop_algo=algorithm, deterministic="ON", max_call_depth=1000 + width):
            torch.nn.functional.conv2d(torch.ones(1, 1, 4, width), w)
    assert median([step() for _ in range(9)]) == median(first)


def test_one_context_is_entered_again_and_inside_itself(exact_state: State) -> None:
    before = exact_state()
    ctx = msctx.context(runtime_num_threads=1)
    for _ in range(2):
        with ctx:
            with msctx.context(runtime_num_threads=2):
                with ctx:
                    assert threads() == 1
                assert threads() == 2
            assert threads() == 1
        assert exact_state() == before


def test_entering_inside_a_call_under_the_same_context() -> None:
    ctx = msctx.context(max_call_depth=50)
    with ctx, ctx, ctx:
        assert msctx.get_context("max_call_depth") == 50


# --- leaving in the wrong order, or from elsewhere --------------------------------------------------------------------


def test_out_of_order(exact_state: State) -> None:
    before = exact_state()
    outer, inner = msctx.context(runtime_num_threads=1), msctx.context(deterministic="ON")
    outer.__enter__()
    inner.__enter__()
    inside = exact_state()
    with pytest.raises(ScopeError, match=r"was left before the .* inside it"):
        outer.__exit__(None, None, None)
    assert exact_state() == inside, "both stay in force"
    with pytest.raises(ScopeError, match="not open"):
        outer.__exit__(None, None, None)
    assert msctx.current() is inner
    inner.__exit__(None, None, None)
    assert exact_state() == before, "they close together"
    with pytest.raises(ScopeError, match="not open"):
        inner.__exit__(None, None, None)
    with msctx.context(runtime_num_threads=1):
        assert threads() == 1
    assert exact_state() == before


def batches() -> Iterator[int]:
    with msctx.context(runtime_num_threads=1):
        while True:
            yield 1


def test_a_generator_that_is_closed_inside_another_context(exact_state: State) -> None:
    """As by ``break`` in a loop over it: no exception has left the inner block."""
    before, generator = exact_state(), batches()
    next(generator)
    with msctx.context(deterministic="ON"):
        inside = exact_state()
        with pytest.warns(
            MsctxWarning, match=r"of a generator that was closed stays in force until the with-block at .* is left"
        ):
            generator.close()
        assert exact_state() == inside
    assert exact_state() == before, "they close together"


@pytest.mark.parametrize("then", ["reset_context", "enters", "leaves"])
def test_a_generator_that_another_thread_closes(exact_state: State, then: str) -> None:
    """As the collector may, in whichever thread it runs: the thread that entered the context closes it at its next turn."""
    before = exact_state()
    with msctx.context() if then == "leaves" else nullcontext():
        generator = batches()
        next(generator)
        with pytest.raises(ScopeError, match="this one closes when that thread next enters or leaves"):
            in_thread(generator.close)
        assert exact_state() != before
        if then == "reset_context":
            msctx.reset_context()
        elif then == "enters":
            with msctx.context(deterministic="ON"):
                assert threads() == before["torch.num_threads"]
    assert exact_state() == before


def test_what_such_a_context_raises_does_not_keep_reset_context_from_its_work(base: None, exact_state: State) -> None:
    def generate() -> Iterator[None]:
        with msctx.context(strict=True, conv_algo_rules={"stride=7": "gemm"}):
            torch.nn.functional.conv2d(torch.ones(1, 1, 3, 3), torch.ones(1, 1, 1, 1))
            yield

    before = exact_state()
    msctx.set_context(deterministic="ON")
    generator = generate()
    next(generator)
    with pytest.raises(ScopeError):
        in_thread(generator.close)
    with pytest.raises(msctx.StrictError, match="stride=7"):
        msctx.reset_context()
    assert exact_state() == before


def test_never_entered() -> None:
    with pytest.raises(ScopeError, match="not open in this thread"):
        msctx.context(seed=0).__exit__(None, None, None)


def test_exit_from_another_thread(exact_state: State) -> None:
    before = exact_state()
    with msctx.context(runtime_num_threads=1) as ctx:
        inside = exact_state()
        with pytest.raises(ScopeError, match="left by the thread that entered it"):
            in_thread(lambda: ctx.__exit__(None, None, None))
        assert exact_state() == inside
    assert exact_state() == before


def test_restore_error_still_closes_the_scope(exact_state: State) -> None:
    before = exact_state()
    with pytest.raises(RestoreError), msctx.context(strict=True, runtime_num_threads=1):
        torch.set_num_threads(2)
    assert exact_state() == before
    assert context_module.stack.scopes == []

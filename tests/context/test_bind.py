"""bind: a context carried into another thread, and kept after its scope has closed."""

import threading
from typing import Any

import pytest
import torch
from context_helpers import Elsewhere, OwnError, State, context_module, in_thread, threads
from torch import _C

import msctx
from msctx.errors import MsctxWarning


def multithreading() -> bool:
    """A switch that each thread has for itself; pynative_synchronize turns it off."""
    return _C._is_multithreading_enabled()


def test_bind_carries_a_context_into_a_thread(exact_state: State) -> None:
    before = exact_state()
    with msctx.context(runtime_num_threads=1, pynative_synchronize=True) as ctx:
        bound = msctx.current().bind(lambda: (threads(), multithreading(), msctx.get_context("runtime_num_threads")))
        with Elsewhere() as other:
            assert other.do(multithreading), "torch shares it with new threads: the test proves nothing"
            assert other.do(bound) == (1, False, 1)
            assert other.do(multithreading), "not put back in the thread"
            with pytest.raises(OwnError):
                other.do(ctx.bind(_raise_own_error))
            assert other.do(multithreading)
            assert other.do(lambda: context_module.stack.scopes) == []
        assert bound() == (1, False, 1), "in the thread where it was bound"
    assert exact_state() == before


def _raise_own_error() -> None:
    raise OwnError


def test_bind_sets_the_number_of_threads_in_a_thread_that_is_older() -> None:
    """A thread that has already computed keeps its own number of OpenMP threads."""
    found = threads()
    with Elsewhere() as other:
        assert other.do(lambda: (torch.ones(64, 64) @ torch.ones(64, 64)).shape[0] and threads()) == found
        with msctx.context(runtime_num_threads=found + 1):
            assert other.do(msctx.current().bind(threads)) == found + 1
            assert in_thread(threads) == found + 1, "new threads still get the context's number"
            assert threads() == found + 1
        assert other.do(threads) == found
    assert threads() == found


def test_bind_after_the_scope_has_closed_enters_it_afresh(exact_state: State) -> None:
    before = exact_state()
    with msctx.context(runtime_num_threads=1), msctx.context(pynative_synchronize=True):
        bound = msctx.current().bind(lambda: (threads(), multithreading()))
    assert (threads() == 1, multithreading()) == (False, True)
    assert in_thread(bound) == (1, False)
    assert bound() == (1, False)
    assert exact_state() == before


class Work:
    def __init__(self) -> None:
        self.started, self.may_end = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.started.set()
        self.may_end.wait(10)


def test_leaving_while_a_bound_function_runs_is_told(exact_state: State) -> None:
    before, work = exact_state(), Work()
    with Elsewhere() as other:

        def leave_early() -> Any:
            with msctx.context(pynative_synchronize=True) as ctx:
                running = other._pool.submit(ctx.bind(work))
                assert work.started.wait(10)
            return running

        with pytest.warns(MsctxWarning, match=r"was left while 1 function\(s\) bound to it still run"):
            running = leave_early()
        assert exact_state() == before
        work.may_end.set()
        running.result(10)
        assert other.do(multithreading)
    assert exact_state() == before


def test_bind_outside_every_with_block_carries_set_context(base: None) -> None:
    msctx.set_context(pynative_synchronize=True, runtime_num_threads=1)
    assert in_thread(msctx.current().bind(lambda: (multithreading(), threads()))) == (False, 1)
    assert in_thread(multithreading)

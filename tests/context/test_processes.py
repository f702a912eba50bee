"""Other processes: contexts bound into spawned ones, and what a forked one can do with those it inherits."""

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest
from context_helpers import Passes

import msctx


@pytest.fixture(scope="module")
def spawned() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.mark.full
def test_bind_into_a_spawned_process(spawned: ProcessPoolExecutor) -> None:
    plain = spawned.submit(msctx.state).result(120)
    assert not plain["torch.deterministic"]
    with msctx.context(deterministic="ON"), msctx.context(runtime_num_threads=1, pynative_synchronize=True) as ctx:
        there = spawned.submit(ctx.bind(msctx.state)).result(120)
        here, names = msctx.state(), list(ctx.plan.assignments)
    assert len(names) > 5
    for name in names:
        assert there[name] == here[name], name
    assert there["torch.deterministic"]
    assert there["torch.num_threads"] == 1
    assert not there["torch.autograd.multithreading"]
    assert spawned.submit(msctx.state).result(120) == plain, "the worker was not put back"


def test_forked_children_enter_contexts_and_keep_what_they_are_born_with(passes: Passes) -> None:
    passes("""
        import os, signal, sys, warnings, torch, msctx

        def child(function):
            "Run in a forked child; an error or ten seconds end it."
            sys.stdout.flush()
            if (pid := os.fork()) == 0:
                signal.alarm(10)
                try:
                    function()
                    code = 0
                except BaseException:
                    import traceback
                    traceback.print_exc()
                    code = 1
                os._exit(code)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            assert code != -signal.SIGALRM, "the child hangs"
            assert code == 0, code

        def enter():
            before = msctx.state()
            with msctx.context(deterministic="ON", max_call_depth=2000) as ctx:
                assert torch.are_deterministic_algorithms_enabled()
                assert msctx.current() is ctx
            assert msctx.state() == before
            msctx.set_context(max_call_depth=50)
            msctx.reset_context()
            assert msctx.state() == before

        child(enter)
        with msctx.context(deterministic="ON", runtime_num_threads=1) as ctx:  # open in the thread that forks
            def inherit():
                assert msctx.current() is ctx
                ctx.__exit__(None, None, None)
                assert not torch.are_deterministic_algorithms_enabled()
                enter()
            child(inherit)
            assert torch.are_deterministic_algorithms_enabled()

        # OpenMP's pool does not survive a fork: torch gives a worker one thread, and computing with more would hang it
        (torch.ones(4_000_000) + 1).sum()  # the parent has used its pool
        ctx = msctx.context(runtime_num_threads=2)
        def work():
            torch.set_num_threads(1)  # as torch's DataLoader does
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                with ctx:
                    assert (torch.ones(4_000_000) + 1).sum() == 8_000_000
            assert told, "runtime_num_threads=2 was dropped in silence"
        child(work)
    """)

"""with-blocks: entered, left, nested and entered again, each level restored; left in the wrong order or from elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from context_helpers import State, in_thread, threads

import msctx
from msctx.errors import MsctxWarning, ScopeError


# Options that may yield to others are laid anew at each entry, for each of the layers below
@pytest.mark.parametrize("options", [{"deterministic": "ON"}, {"max_device_memory": "1GB"}, {"precision_mode": "force_fp32"}])
def test_what_an_entry_does_does_not_grow_with_its_depth(options: dict[str, Any]) -> None:
    counts = []
    with ExitStack() as stack:
        for _ in range(60):
            context, calls = msctx.context(**options), list[str]()
            sys.setprofile(lambda frame, event, _, calls=calls: calls.append(event))  # type: ignore[misc]
            stack.enter_context(context)
            sys.setprofile(None)
            counts.append(len(calls))
    assert counts[59] < 1.5 * counts[9], counts


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


# --- leaving in the wrong order, or from elsewhere --------------------------------------------------------------------


def test_out_of_order(exact_state: State) -> None:
    before = exact_state()
    outer, inner = msctx.context(runtime_num_threads=1), msctx.context(deterministic="ON")
    outer.__enter__()
    inner.__enter__()
    with pytest.raises(ScopeError, match=r"was left before the .* inside it; both are closed"):
        outer.__exit__(None, None, None)
    assert exact_state() == before
    for context in (outer, inner):
        with pytest.raises(ScopeError, match="not open"):
            context.__exit__(None, None, None)
    with msctx.context(runtime_num_threads=1):
        assert threads() == 1
    assert exact_state() == before


def batches() -> Iterator[int]:
    with msctx.context(runtime_num_threads=1):
        while True:
            yield 1


def test_a_generator_that_is_closed_inside_another_context(exact_state: State) -> None:
    before, generator = exact_state(), batches()
    next(generator)
    with msctx.context(deterministic="ON"):
        inside = exact_state()
        with pytest.warns(
            MsctxWarning, match="of a generator that was closed stays in force until the with-block at .* is left"
        ):
            generator.close()
        with msctx.context(seed=1):
            pass
        assert exact_state() == inside
    assert exact_state() == before, "they close together"


def test_an_error_of_the_block_goes_on_although_another_context_has_closed_it() -> None:
    outer = msctx.context(runtime_num_threads=1)
    outer.__enter__()

    def block() -> None:
        with msctx.context(deterministic="ON"):
            with pytest.raises(ScopeError):
                outer.__exit__()
            raise ZeroDivisionError

    with pytest.warns(MsctxWarning, match="is not open in this thread"), pytest.raises(ZeroDivisionError):
        block()


def test_exit_from_another_thread(exact_state: State) -> None:
    before = exact_state()
    with msctx.context(runtime_num_threads=1) as ctx:
        inside = exact_state()
        with pytest.raises(ScopeError, match="not open in this thread: leave it once, in the thread that entered it"):
            in_thread(lambda: ctx.__exit__(None, None, None))
        assert exact_state() == inside
    assert exact_state() == before


COUNT = """
import os, sys, torch, msctx
ROOT = os.path.dirname(msctx.__file__)

def block(**options):
    with msctx.context(**options):
        pass

def functions(**options):
    block(**options)
    found = set()
    def count(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT) and not code.co_name.endswith(("comp>", "genexpr>")):
            found.add((code.co_filename, code.co_firstlineno))
    sys.setprofile(count)
    block(**options)
    sys.setprofile(None)
    return len(found), len({file for file, _ in found})

few, most = functions(), functions(deterministic="ON")
assert few[0] <= 30 and few[1] <= 8, few
assert most[0] <= 60 and most[1] <= 15, most
"""


def test_entering_and_leaving_runs_few_functions(passes: Callable[..., str]) -> None:
    passes(COUNT)

"""Ctrl-C while settings are written or restored: it comes once that is done, and all is restored."""

import dataclasses
import gc
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch

import msctx
from msctx.context import Context, ledger
from msctx.context.open_contexts import stack
from msctx.context.process_wide import BASE
from msctx.deferred_interrupts import Turn, uninterrupted

OPTIONS = {"deterministic": "ON", "runtime_num_threads": 1, "max_call_depth": 2000}
State = Callable[[], dict[str, Any]]


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The switch of the number of threads is interrupted by Ctrl-C whenever it is written, and when it is restored."""

    def write(value: int) -> None:
        signal.raise_signal(signal.SIGINT)
        torch.set_num_threads(value)

    switch = dataclasses.replace(ledger.SWITCHES["torch.num_threads"], write=write, state=(torch.get_num_threads, write))
    monkeypatch.setattr(ledger, "SWITCHES", {**ledger.SWITCHES, "torch.num_threads": switch})


def test_the_outermost_block_delivers_it() -> None:
    seen: list[str] = []

    def work() -> None:
        with uninterrupted():
            with uninterrupted():
                signal.raise_signal(signal.SIGINT)
            seen.append("after the inner block")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert seen == ["after the inner block"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_in_set_context_leaves_values_and_switches_agreed(base: None, interrupted: None, exact_state: State) -> None:
    before = exact_state()
    with pytest.raises(KeyboardInterrupt):
        msctx.set_context(runtime_num_threads=1)
    assert (torch.get_num_threads(), msctx.get_context("runtime_num_threads")) == (1, 1)
    with pytest.raises(KeyboardInterrupt):
        msctx.reset_context()
    assert exact_state() == before
    assert not BASE.levels


held: list[int] = []


def enter_a_context() -> None:
    with msctx.context(**OPTIONS):
        pass


def take_a_turn() -> None:
    with Turn() as turn:
        turn.begin(lambda: held.append(1), lambda _: held.clear())


@pytest.mark.filterwarnings("ignore:the with-block at test_signals")
@pytest.mark.parametrize("work", [enter_a_context, take_a_turn])
def test_ctrl_c_at_any_call_of_entering_and_leaving(work: Callable[[], None], exact_state: State) -> None:
    """Python runs signal handlers where a function begins, and where one of C returns."""

    def interrupted_at(call: int) -> bool:
        left = [call]

        def count(frame: FrameType, event: str, argument: object) -> None:
            # before __exit__ has begun, Python itself leaves a with-block open
            begins = event == "call" and frame.f_code not in (Context.__exit__.__code__, Turn.__exit__.__code__)
            if "/msctx/" in frame.f_code.co_filename and frame.f_code.co_name != "__del__" and (begins or event == "c_return"):
                left[0] -= 1
                if not left[0]:
                    signal.raise_signal(signal.SIGINT)

        gc.disable()  # what a finalizer raises is not passed on
        sys.setprofile(count)
        try:
            work()
        except KeyboardInterrupt:
            return True
        finally:
            sys.setprofile(None)
            gc.enable()
        return False

    before = exact_state()
    call = 1
    while interrupted_at(call):
        assert exact_state() == before, call
        assert [*stack.scopes, *held] == [], call
        call += 1
    assert call > 15


def test_a_block_that_ctrl_c_left_open_can_be_left(exact_state: State) -> None:
    """Python handles the signal before the first statement of __exit__."""

    def interrupt(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code is Context.__exit__.__code__:
            signal.raise_signal(signal.SIGINT)

    before = exact_state()
    with pytest.raises(KeyboardInterrupt), msctx.context(**OPTIONS):
        sys.setprofile(interrupt)
    sys.setprofile(None)
    assert exact_state() != before
    msctx.current().__exit__()
    assert exact_state() == before
    assert not stack.scopes

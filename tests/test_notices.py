"""Warnings: once under one state of Python's filters, at the user's line, and how many there were beside the first."""

import sys
import threading
import warnings

import pytest

import msctx
from msctx import notices
from msctx.errors import MsctxWarning


def issue(reason: str = "reason") -> None:
    notices.warn("option", reason, f"option: {reason}")


def recorded(times: int) -> int:
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        for _ in range(times):
            issue()
    return len(issued)


def test_once_for_each_reason() -> None:
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        for reason in ("one", "two", "one", "two"):
            issue(reason)
    assert [str(w.message) for w in issued] == ["option: one", "option: two"]
    assert {w.filename for w in issued} == {__file__}


def test_filters_that_are_others_have_their_own_warnings() -> None:
    assert [recorded(3), recorded(3)] == [1, 1]
    with pytest.warns(MsctxWarning):
        issue()
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        issue()
        assert recorded(2) == 1
        issue()
    assert len(issued) == 1, "the filters from before the inner block are in force again"


def test_a_warning_that_is_an_error_is_raised_each_time() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(MsctxWarning):
                issue()


def test_reset_context_lets_each_be_issued_again() -> None:
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        for _ in range(2):
            issue()
            msctx.reset_context()
    assert len(issued) == 2


def test_what_follows_the_first_is_counted() -> None:
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        for number in range(4):
            notices.warn_first("option", f"problem {number}")
    assert [str(w.message) for w in issued] == ["problem 0"]
    assert notices.counted(("another",)) == []
    assert notices.counted(("option",)) == [("option", 3)]
    assert notices.counted(("option",)) == []


def test_many_filters_are_not_remembered_for_ever() -> None:
    for _ in range(100):
        recorded(1)
    assert len(notices._warned) <= 8


def test_filters_that_are_changed_in_place() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        issue()
        warnings.simplefilter("error")
        with pytest.raises(MsctxWarning):
            issue()


def test_threads_may_begin_contexts_of_the_same_options_at_once() -> None:
    options, failed = [f"option{number}" for number in range(20)], list[BaseException]()

    def begin() -> None:
        try:
            for _ in range(2000):
                for option in options:
                    notices.note_of_context(option, option, "reason")
                    notices._more[option] += 1
                notices.begin_context(options)
                notices.counted(options)
        except BaseException as error:
            failed.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=begin) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not failed

"""Warnings: once under one state of Python's filters, at the user's line, and how many there were beside the first."""

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


def test_filters_that_are_changed_in_place() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        issue()
        warnings.simplefilter("error")
        with pytest.raises(MsctxWarning):
            issue()

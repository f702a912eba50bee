"""Warnings: at the user's line, once for a text there by default, and after what they must not break off."""

import warnings

import pytest

from msctx import notices
from msctx.errors import MsctxWarning


def test_python_shows_each_text_once_for_a_line() -> None:
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("default")
        for text in ("one", "two", "one", "two"):
            notices.warn(text)
    assert [(str(w.message), w.filename) for w in issued] == [("one", __file__), ("two", __file__)]


def test_those_put_off_come_after_the_block() -> None:
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        with notices.put_off():
            notices.warn("late")
            assert not issued
    assert [str(w.message) for w in issued] == ["late"]


def _warn_and_fail() -> None:
    with notices.put_off():
        notices.warn("beside")
        raise ZeroDivisionError


def test_one_that_is_an_error_replaces_no_exception(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(MsctxWarning, match="alone"), notices.put_off():
            notices.warn("alone")
        with pytest.raises(ZeroDivisionError):
            _warn_and_fail()
    assert capsys.readouterr().err == "warning: beside\n"

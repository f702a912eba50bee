"""Warnings at the user's line, once for a text, after what they must not break off; errors that are copied stay whole."""

import copy
import pickle
import warnings
from collections.abc import Callable

import pytest

from msctx import notices
from msctx.errors import Diagnostic, FileError, Mark, MsctxWarning, OptionError, _ProblemsError
from msctx.mindspore.errors import OptionRuntimeError, OptionTypeError


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


PROBLEMS = [
    Diagnostic("deterministic", "'on' is wrong", "with-block"),
    Diagnostic("seed", "no", mark=Mark("a.yaml", 1, 2, "s: x")),
]
WAYS: list[Callable[[BaseException], BaseException]] = [
    copy.copy,
    copy.deepcopy,
    lambda error: pickle.loads(pickle.dumps(error)),
]


@pytest.mark.parametrize("kind", [OptionError, FileError, OptionTypeError, OptionRuntimeError])
@pytest.mark.parametrize("way", WAYS)
def test_problems_survive_pickle_and_copy(kind: type[_ProblemsError], way: Callable[[_ProblemsError], _ProblemsError]) -> None:
    error = kind(PROBLEMS)
    error.__dict__["__notes__"] = ["rank 1"]
    found = way(error)
    assert type(found) is kind
    assert str(found) == str(error)
    assert found.problems == error.problems
    assert found.__dict__["__notes__"] == ["rank 1"]

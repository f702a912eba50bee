"""Errors that come from another process or are copied: the same message, problems and notes."""

import copy
import pickle
from collections.abc import Callable

import pytest

from msctx.errors import Diagnostic, FileError, Mark, OptionError, _ProblemsError
from msctx.mindspore.errors import OptionRuntimeError, OptionTypeError

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

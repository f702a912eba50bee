"""ledger.py: exact restore on every way out, changes by others, the base, and one thread at a time."""

from typing import Any

import pytest
import torch
from context_helpers import OwnError, in_thread
from fake_switches import FOUND, NEW, change_one

import msctx
from msctx.context import ledger
from msctx.context.ledger import HELD
from msctx.errors import MsctxWarning, RestoreError, ScopeError, SwitchError


def test_restores_in_reverse_order(library):
    hold = ledger.apply(NEW, ledger.Hold("one"))
    assert library == NEW
    ledger.undo(hold)
    assert library == FOUND
    assert library.log == [("a", 1), ("b", 2), ("c", 3), ("c", "c found"), ("b", "b found"), ("a", "a found")]


@pytest.mark.parametrize("at", ["a", "b", "c"])
@pytest.mark.parametrize("error", [RuntimeError, ValueError, KeyboardInterrupt, SystemExit])
def test_a_write_that_raises_undoes_the_earlier_ones(library, at, error):
    def fail(name: str, value: Any) -> None:
        if name == at and value == NEW[at]:
            library[name] = "half written"
            raise error("no")

    library.on_write = fail
    with pytest.raises(SwitchError if error is RuntimeError else error, match="no"):
        ledger.apply(NEW, ledger.Hold("one"))
    assert library == FOUND


def test_a_switch_that_keeps_another_value_is_an_error(library, monkeypatch):
    change_one(monkeypatch, "b", write=lambda value: library.update(b=str(value).upper()))
    with pytest.raises(SwitchError, match=r"b did not take 'x': it reads 'X'\. Nothing was changed\."):
        ledger.apply({"a": 1, "b": "x", "c": 3}, ledger.Hold("one"))
    assert library["a"] == "a found"
    assert library["c"] == "c found"
    assert ("c", 3) not in library.log


def test_one_failing_restore_does_not_keep_the_others(library):
    def fail(name: str, value: Any) -> None:
        if (name, value) == ("b", "b found"):
            raise RuntimeError("b is stuck")

    hold = ledger.apply(NEW, ledger.Hold("one"))
    library.on_write = fail
    with pytest.raises(RestoreError, match="b: b is stuck"):
        ledger.undo(hold)
    assert library == {**FOUND, "b": 2}


@pytest.mark.parametrize("error", [OwnError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("strict", [False, True])
def test_an_error_of_the_body_goes_through_when_something_cannot_be_put_back(monkeypatch, error, strict):
    def stuck(state: Any) -> None:
        torch.set_num_threads(state[0])
        raise RuntimeError("stuck")

    with monkeypatch.context() as patch:
        change_one(patch, "torch.num_threads", state=(lambda: (torch.get_num_threads(),), stuck))
        with (
            pytest.raises(error),
            pytest.warns(MsctxWarning, match=r"torch\.num_threads: stuck"),
            msctx.context(runtime_num_threads=1, strict=strict),
        ):
            raise error
    assert not HELD


def test_a_foreign_change_in_a_with_block(exact_state):
    before = exact_state()
    with (
        pytest.warns(
            MsctxWarning, match=r"(?s)with-block at test_apply\.py:\d+ .*  torch\.num_threads: set 1, found 2 at exit"
        ),
        msctx.context(runtime_num_threads=1),
    ):
        torch.set_num_threads(2)
    assert exact_state() == before
    with pytest.raises(RestoreError, match="set 1, found 2"), msctx.context(runtime_num_threads=1, strict=True):
        torch.set_num_threads(2)
    assert exact_state() == before


def test_a_switch_of_the_process_has_one_thread_at_a_time(library):
    hold = ledger.apply({"a": 1}, ledger.Hold("with-block at one.py:1"))
    before = dict(library)
    with pytest.raises(ScopeError, match=r"other: a belongs to the whole process, and the with-block at one\.py:1 of another"):
        in_thread(lambda: ledger.apply({"b": 2, "a": 2}, ledger.Hold("other")))
    assert library == before
    in_thread(lambda: ledger.undo(ledger.apply({"b": 2, "c": 2}, ledger.Hold("other"))))
    assert library == before
    ledger.undo(hold)
    in_thread(lambda: ledger.undo(ledger.apply({"b": 2, "a": 2}, ledger.Hold("other"))))
    assert library == FOUND


def test_a_change_of_the_base_is_undone_past_what_cannot_be(base, library):
    def stuck(name: str, value: object) -> None:
        if (name, value) in (("c", 3), ("b", "b found")):
            raise RuntimeError("stuck")

    library.on_write = stuck
    with pytest.raises(RestoreError, match=r"c did not take 3(?s:.*)b: stuck") as raised:
        ledger.apply(NEW, base)
    assert isinstance(raised.value.__cause__, SwitchError)
    assert library == {**FOUND, "b": 2}
    assert not base.records
    library.update(FOUND)

"""Switches that cannot be restored: they stay, which is reported once, refused under strict, and silent in the base."""

import warnings

import pytest
from context_helpers import Passes
from fake_switches import FOUND, NEW, Globals, change_one

from msctx.context import ledger
from msctx.errors import MsctxWarning, StrictError


@pytest.fixture
def lasting(library: Globals, monkeypatch: pytest.MonkeyPatch) -> Globals:
    """The switch b stays as it is written."""
    change_one(monkeypatch, "b", restore="it is read only before the flood")
    return library


def test_a_lasting_switch_stays_and_says_so_once(lasting: Globals) -> None:
    with pytest.warns(MsctxWarning, match="b=2, if it can still be set, stays after this with-block") as told:
        ledger.undo(ledger.apply(NEW, ledger.Hold("one")))
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ledger.undo(ledger.apply(NEW, ledger.Hold("one")))
    assert lasting == {**FOUND, "b": 2}


def test_a_lasting_switch_is_refused_under_strict(lasting: Globals) -> None:
    with pytest.raises(StrictError, match="b cannot be restored"):
        ledger.apply(NEW, ledger.Hold("one"), strict=True)
    assert lasting == FOUND
    assert not lasting.log
    lasting["b"] = 2
    ledger.undo(ledger.apply(NEW, ledger.Hold("one"), strict=True))  # it has the value already: nothing would stay


def test_the_base_sets_a_lasting_switch_without_a_warning(lasting: Globals) -> None:
    base = ledger.Hold("set_context", base=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ledger.apply(NEW, base, strict=True)
    ledger.apply({}, base)
    assert lasting == {**FOUND, "b": 2}


def test_what_takes_effect_early_is_written_first(lasting: Globals) -> None:
    """Another switch, such as the device, may be what comes too late for it."""
    with pytest.warns(MsctxWarning, match="stays"):
        ledger.undo(ledger.apply({"a": 1, "b": 2, "c": 3}, ledger.Hold("one")))
    assert [name for name, _ in lasting.log[:3]] == ["b", "a", "c"]
    lasting.log.clear()
    base = ledger.Hold("set_context", base=True)
    ledger.apply({"a": 2, "b": 3, "c": 4}, base)
    assert [name for name, _ in lasting.log[:3]] == ["b", "a", "c"]
    ledger.apply({}, base)


def test_what_would_stay_is_not_written_when_warnings_are_errors(lasting: Globals) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(MsctxWarning, match="stays after this with-block"):
            ledger.apply(NEW, ledger.Hold("one"))
    assert lasting == FOUND
    assert not lasting.log, "something was written before the warning"


INTEROP = """
import os, sys, traceback, warnings, torch, msctx

def after_a_with_block():
    options = dict(inter_op_parallel_num=torch.get_num_interop_threads() + 3)
    wanted = options["inter_op_parallel_num"]
    assert "stays" in msctx.explain(options).rows[0].reason, "the plan does not say that it stays"
    before = msctx.state()
    try:
        with msctx.context(strict=True, **options):
            raise SystemExit("strict entered it")
    except msctx.StrictError as error:
        assert "num_interop_threads" in str(error), error
    assert msctx.state() == before
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with msctx.context(**options):
            assert torch.get_num_interop_threads() == wanted
        with msctx.context(**options):
            pass
    assert torch.get_num_interop_threads() == wanted
    texts = [str(w.message) for w in told if "stays" in str(w.message)]
    assert len(texts) == len(told) == 1, told
    with msctx.context(strict=True, **options):  # nothing would be left behind
        pass
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with msctx.context(inter_op_parallel_num=wanted + 1, runtime_num_threads=1):
            assert torch.get_num_threads() == 1
            assert torch.get_num_interop_threads() == wanted
    (told,) = told
    assert f"operators, and only once in a process: {wanted} stays in" in str(told.message), told
    assert torch.get_num_interop_threads() == wanted
    (row,) = msctx.explain(inter_op_parallel_num=wanted + 1).rows
    assert row.status == "refused" and f"{wanted} stays in force" in row.reason, row

def by_set_context():
    warnings.simplefilter("error")
    wanted = torch.get_num_interop_threads() + 3
    threads = torch.get_num_threads()
    msctx.set_context(inter_op_parallel_num=wanted)
    assert torch.get_num_interop_threads() == wanted
    msctx.set_context(inter_op_parallel_num=wanted)
    try:
        msctx.set_context(strict=True, inter_op_parallel_num=wanted + 1, runtime_num_threads=1)
        raise SystemExit("a second value was taken")
    except msctx.StrictError as error:
        assert "can only be set before" in str(error), error
    assert (torch.get_num_interop_threads(), torch.get_num_threads()) == (wanted, threads)
    assert msctx.get_context("strict") is not True, "refused, and yet in force"
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        msctx.set_context(inter_op_parallel_num=wanted + 1)
    assert any("can only be set before" in str(w.message) for w in told), told
    msctx.reset_context()
    assert torch.get_num_interop_threads() == wanted

def when_a_warning_of_another_option_is_an_error():
    warnings.simplefilter("error")
    found = torch.get_num_interop_threads()
    for own in (dict(), dict(enable_dump=True)):
        options = dict(inter_op_parallel_num=found + 3, **own)
        enters = [lambda: msctx.context(**options).__enter__()]
        enters += [lambda: msctx.set_context(**options)] if own else []
        for enter in enters:
            try:
                enter()
                raise SystemExit(f"{options}: no warning")
            except msctx.MsctxWarning:
                assert torch.get_num_interop_threads() == found, options
    assert msctx.get_context("inter_op_parallel_num", origin=True).origin == "default"

for check in (after_a_with_block, by_set_context, when_a_warning_of_another_option_is_an_error):
    if (child := os.fork()) == 0:  # torch takes the number once in a process
        try:
            check()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
        sys.exit(check.__name__)
"""


def test_the_number_of_inter_op_threads_stays(passes: Passes) -> None:
    passes(INTEROP)

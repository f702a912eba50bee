"""Switches that cannot be restored: they stay, which is reported once, refused under strict, and silent in the base."""

import warnings

import pytest
from fake_switches import FOUND, NEW, change_one

from msctx.context import ledger
from msctx.errors import MsctxWarning, StrictError


@pytest.fixture
def lasting(library, monkeypatch):
    change_one(monkeypatch, "b", restore="it is read only before the flood")
    return library


def test_a_lasting_switch_stays_and_says_so_once(lasting):
    with pytest.warns(MsctxWarning, match="b=2, if it can still be set, stays after this with-block") as told:
        ledger.undo(ledger.apply(NEW, ledger.Hold("one")))
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ledger.undo(ledger.apply(NEW, ledger.Hold("one")))
    assert lasting == {**FOUND, "b": 2}


def test_a_lasting_switch_is_refused_under_strict(lasting):
    with pytest.raises(StrictError, match="b cannot be restored"):
        ledger.apply(NEW, ledger.Hold("one"), strict=True)
    assert lasting == FOUND
    assert not lasting.log
    lasting["b"] = 2
    ledger.undo(ledger.apply(NEW, ledger.Hold("one"), strict=True))  # it has the value already: nothing would stay


def test_the_base_sets_a_lasting_switch_without_a_warning(lasting):
    base = ledger.Hold("set_context", base=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ledger.apply(NEW, base, strict=True)
    ledger.apply({}, base)
    assert lasting == {**FOUND, "b": 2}


def test_what_takes_effect_early_is_written_first(lasting):
    """Another switch, such as the device, may be what comes too late for it."""
    with pytest.warns(MsctxWarning, match="stays"):
        ledger.undo(ledger.apply({"a": 1, "b": 2, "c": 3}, ledger.Hold("one")))
    assert [name for name, _ in lasting.log[:3]] == ["b", "a", "c"]
    lasting.log.clear()
    base = ledger.Hold("set_context", base=True)
    ledger.apply({"a": 2, "b": 3, "c": 4}, base)
    assert [name for name, _ in lasting.log[:3]] == ["b", "a", "c"]
    ledger.apply({}, base)


def test_what_would_stay_is_not_written_when_warnings_are_errors(lasting):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(MsctxWarning, match="stays after this with-block"):
            ledger.apply(NEW, ledger.Hold("one"))
    assert lasting == FOUND
    assert not lasting.log, "something was written before the warning"


def test_the_number_of_inter_op_threads_stays(passes):
    """Torch takes it once in a process."""
    passes("""
        import torch, warnings, msctx
        found = torch.get_num_interop_threads()
        wanted, late = {"inter_op_parallel_num": found + 3}, {"inter_op_parallel_num": found + 4, "runtime_num_threads": 1}

        def told(**options):
            with warnings.catch_warnings(record=True) as issued:
                warnings.simplefilter("always")
                with msctx.context(**options) as ctx:
                    assert torch.get_num_threads() == options.get("runtime_num_threads", torch.get_num_threads())
                assert torch.get_num_interop_threads() == found + 3
            return ctx.plan.rows[0], [str(one.message) for one in issued]

        def refused(enter, text):
            before = msctx.state()
            try:
                enter()
            except msctx.StrictError as error:
                assert text in str(error), error
            else:
                raise SystemExit(f"no error: {text}")
            assert msctx.state() == before and not msctx.get_context()

        refused(msctx.context(strict=True, **wanted).__enter__, "num_interop_threads")
        row, texts = told(**wanted)
        assert "stays" in row.reason and len(texts) == 1 and "stays" in texts[0], (row, texts)
        assert told(**wanted)[1] == [] == told(strict=True, **wanted)[1], "nothing would be left behind"
        row, (text,) = told(**late)
        assert (row.status, dict(row.assignments)) == ("refused", {}) and f"{found + 3} stays in force" in row.reason, row
        assert f"operators, and only once in a process: {found + 3} stays in" in text, text
        refused(lambda: msctx.set_context(strict=True, **late), "can only be set before")
        with warnings.catch_warnings(record=True) as issued:
            [msctx.set_context(**options) for options in (late, {"max_call_depth": 9})]
        assert len(issued) == 1, issued
    """)

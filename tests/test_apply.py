"""apply.py: exact restore on every way out, Ctrl-C at every moment, changes by others, and what cannot be put back."""

import dataclasses
import importlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import _C

import msctx
from msctx import apply
from msctx.errors import MsctxWarning, RestoreError, ScopeError, StrictError, SwitchError
from msctx.switches import SWITCHES, Switch

context_module = importlib.import_module("msctx.context")
Held = Callable[..., AbstractContextManager[apply.Hold]]
State = Callable[[], dict[str, Any]]
Passes = Callable[..., str]


class Globals(dict[str, Any]):
    """Globals of an imagined library, the switches that move them, and a log of every write."""

    def __init__(self, *names: str) -> None:
        super().__init__({name: f"{name} found" for name in names})
        self.log: list[tuple[str, Any]] = []
        self.on_write: Callable[[str, Any], None] = lambda name, value: None

    def switch(self, name: str, **more: Any) -> Switch:
        def write(value: Any) -> None:
            self.on_write(name, value)
            self[name] = value
            self.log.append((name, value))

        return Switch(name=name, read=lambda: self[name], write=write, **more)


FOUND = {"a": "a found", "b": "b found", "c": "c found"}
NEW = {"a": 1, "b": 2, "c": 3}


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Globals]:
    """Three switches of a library that is not there: a, b and c."""
    found = Globals("a", "b", "c")
    monkeypatch.setattr(apply, "SWITCHES", {name: found.switch(name) for name in found})
    yield found
    assert not any(apply._ledger.values()), "a switch is still held"


def change_one(monkeypatch: pytest.MonkeyPatch, name: str, **fields: Any) -> None:
    """Give one real switch other functions for the length of a test."""
    monkeypatch.setattr(apply, "SWITCHES", {**apply.SWITCHES, name: dataclasses.replace(apply.SWITCHES[name], **fields)})


# --- the way out ------------------------------------------------------------------------------------------------------


def test_restores_in_reverse_order(library: Globals) -> None:
    hold = apply.apply(NEW, "one")
    assert library == NEW
    apply.undo(hold)
    assert library == FOUND
    assert library.log == [("a", 1), ("b", 2), ("c", 3), ("c", "c found"), ("b", "b found"), ("a", "a found")]


def test_what_was_found_is_put_back_at_each_level(library: Globals) -> None:
    outer = apply.apply({"a": 1}, "outer")
    library["b"] = "changed by the user"
    inner = apply.apply({"b": 2, "a": 2}, "inner")
    assert library == {"a": 2, "b": 2, "c": "c found"}
    apply.undo(inner)
    assert library == {"a": 1, "b": "changed by the user", "c": "c found"}
    apply.undo(outer)
    assert library == {"a": "a found", "b": "changed by the user", "c": "c found"}


def test_a_value_already_in_force_is_not_written(library: Globals) -> None:
    apply.undo(apply.apply({"a": "a found"}, "one"))
    assert ("a", "a found") not in library.log[:-1]
    assert library == FOUND


def test_a_value_already_in_force_is_still_protected(library: Globals) -> None:
    hold = apply.apply({"a": "a found"}, "one")
    library["a"] = "changed inside"
    with pytest.warns(MsctxWarning, match="changed inside"):
        apply.undo(hold)
    assert library == FOUND


class OwnError(Exception):
    pass


@pytest.mark.parametrize("error", [OwnError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_restores_after_an_exception(held: Held, exact_state: State, error: type[BaseException]) -> None:
    before = exact_state()

    def fail() -> None:
        with held({"torch.num_threads": 1, "torch.mkldnn.deterministic": True, "torch.anomaly_mode": True}):
            assert exact_state() != before
            raise error

    with pytest.raises(error):
        fail()
    assert exact_state() == before


@pytest.mark.parametrize("at", ["a", "b", "c"])
@pytest.mark.parametrize("error", [RuntimeError, ValueError, KeyboardInterrupt, SystemExit])
def test_a_write_that_raises_undoes_the_earlier_ones(library: Globals, at: str, error: type[BaseException]) -> None:
    def fail(name: str, value: Any) -> None:
        if name == at and value == NEW[at]:
            library[name] = "half written"
            raise error("no")

    library.on_write = fail
    with pytest.raises(SwitchError if error is RuntimeError else error, match="no"):
        apply.apply(NEW, "one")
    assert library == FOUND


@pytest.mark.parametrize("at", ["torch.deterministic", "torch.num_threads", "torch.mkldnn.deterministic"])
def test_a_context_that_fails_half_way_changes_nothing(monkeypatch: pytest.MonkeyPatch, exact_state: State, at: str) -> None:
    write = SWITCHES[at].write
    calls: list[Any] = []

    def fail_once(value: Any) -> None:
        calls.append(value)
        assert write is not None
        write(value)
        if len(calls) == 1:
            raise RuntimeError("the driver said no")

    change_one(monkeypatch, at, write=fail_once)
    before = exact_state()
    with pytest.raises(SwitchError, match=rf"{at} did not take .*: the driver said no\. Nothing was changed\."):  # noqa: SIM117
        with msctx.context(deterministic="ON", runtime_num_threads=1):
            pytest.fail("entered")
    assert calls, "the write was never reached"
    assert exact_state() == before


def test_a_switch_that_keeps_another_value_is_an_error(library: Globals, monkeypatch: pytest.MonkeyPatch) -> None:
    change_one(monkeypatch, "b", write=lambda value: library.update(b=str(value).upper()))
    with pytest.raises(SwitchError, match=r"b did not take 'x': it reads 'X'\. Nothing was changed\."):
        apply.apply({"a": 1, "b": "x", "c": 3}, "one")
    assert library["a"] == "a found"
    assert library["c"] == "c found"
    assert ("c", 3) not in library.log


def test_one_failing_restore_does_not_keep_the_others(library: Globals) -> None:
    def fail(name: str, value: Any) -> None:
        if (name, value) == ("b", "b found"):
            raise RuntimeError("b is stuck")

    hold = apply.apply(NEW, "one")
    library.on_write = fail
    with pytest.raises(RestoreError, match="b: b is stuck"):
        apply.undo(hold)
    assert library == {**FOUND, "b": 2}


def test_an_error_of_the_body_stays_visible_behind_a_restore_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(state: Any) -> None:
        torch.set_num_threads(state[0])
        raise RuntimeError("stuck")

    change_one(monkeypatch, "torch.num_threads", load=stuck)
    with pytest.raises(RestoreError, match=r"torch\.num_threads: stuck") as caught, msctx.context(runtime_num_threads=1):
        raise OwnError
    assert isinstance(caught.value.__context__, OwnError) or isinstance(caught.value.__context__.__context__, OwnError)


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["a", "b", "c"])
def test_ctrl_c_during_a_write(library: Globals, at: str) -> None:
    library.on_write = lambda name, value: signal.raise_signal(signal.SIGINT) if (name, value) == (at, NEW[at]) else None
    with pytest.raises(KeyboardInterrupt):
        apply.apply(NEW, "one")
    assert library == FOUND
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("at", ["a", "b", "c"])
def test_ctrl_c_during_a_restore(library: Globals, at: str) -> None:
    hold = apply.apply(NEW, "one")
    library.on_write = lambda name, value: signal.raise_signal(signal.SIGINT) if (name, value) == (at, FOUND[at]) else None
    with pytest.raises(KeyboardInterrupt):
        apply.undo(hold)
    assert library == FOUND
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_during_a_write_that_fails(library: Globals) -> None:
    def both(name: str, value: Any) -> None:
        if (name, value) == ("b", 2):
            signal.raise_signal(signal.SIGINT)
            raise RuntimeError("no")

    library.on_write = both
    with pytest.raises(KeyboardInterrupt):
        apply.apply(NEW, "one")
    assert library == FOUND


def test_a_handler_that_does_not_raise_leaves_the_scope_in_force(library: Globals) -> None:
    seen: list[int] = []
    found = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        library.on_write = lambda name, value: signal.raise_signal(signal.SIGINT) if (name, value) == ("b", 2) else None
        hold = apply.apply(NEW, "one")
        assert seen == [signal.SIGINT], "the program's own handler was not called"
        assert library == NEW, "apply() returned as if the scope were in force, and it is not"
        apply.undo(hold)
        assert library == FOUND
    finally:
        signal.signal(signal.SIGINT, found)


SWEEP = """
import json, signal, sys
import msctx
from msctx import apply
stack = sys.modules["msctx.context"]._stack
OPTIONS = dict(deterministic="ON", runtime_num_threads=1, max_call_depth=2000, seed=0, seed_scope=True)
WATCHED = ("/msctx/", "/contextlib.py")
with msctx.context(**OPTIONS):
    pass
msctx.set_context(**OPTIONS)
msctx.reset_context()
found = msctx.state()

def with_block(say):
    context = msctx.context(**OPTIONS)
    say("entering")
    with context:
        say("leaving")

def set_context(say):
    say("setting")
    msctx.set_context(max_call_depth=2000, runtime_num_threads=1)
    say("resetting")
    msctx.reset_context()

def agree():
    "Whether what get_context says is what is in force."
    depth = msctx.get_context("max_call_depth", origin=True)
    return msctx.state()["torch.nn.max_call_depth"] == (None if depth.origin == "default" else depth.value)

def attempt(action, n):
    "Do it with Ctrl-C on the n-th line that runs in msctx; return where that was, and what was left behind."
    count, place, phase, seen = 0, None, "", False
    def say(text):
        nonlocal phase
        phase = text
        sys.settrace(trace)
    def trace(frame, event, argument):
        nonlocal count, place
        if not any(part in frame.f_code.co_filename for part in WATCHED):
            return None
        if event == "line":
            count += 1
            if count == n:
                first = frame.f_code.co_firstlineno
                place = [frame.f_code.co_filename.rpartition("/")[2], frame.f_code.co_name, frame.f_lineno, frame.f_lineno - first]
                sys.settrace(None)
                above = frame
                while above:
                    above.f_trace, above = None, above.f_back
                signal.raise_signal(signal.SIGINT)
        return trace
    try:
        action(say)
    except KeyboardInterrupt:
        seen = True
    sys.settrace(None)
    problems = [] if seen or place is None else ["Ctrl-C was swallowed"]
    if not agree():
        problems.append("get_context and the switches disagree")
    msctx.reset_context()
    if stack.scopes or any(apply._ledger.values()):
        problems.append("still held")
    if changed := msctx.diff(found, msctx.state()):
        problems.append(f"changed: {sorted(changed)}")
    for hold in {id(h): h for holds in apply._ledger.values() for h in holds}.values():
        for record in reversed(hold.records.values()):
            record.put_back()
        hold.records.clear()
    apply._ledger.clear()
    stack.scopes.clear()
    assert msctx.state() == found
    return place, phase, problems

bad, n = [], 0
for action in (with_block, set_context):
    for n in range(1, 10**6):
        place, phase, problems = attempt(action, n)
        if place is None:
            break
        if problems:
            bad.append([phase, *place, problems])
    assert n > 200, "the trace saw nothing"
print(json.dumps(bad))
"""


@pytest.fixture(scope="module")
def sweep() -> list[list[Any]]:
    """Ctrl-C on every line that msctx runs while a context is entered and left, and while set_context is: what went wrong."""
    done = subprocess.run([sys.executable, "-c", SWEEP], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("phase", ["entering", "setting", "resetting"])
def test_ctrl_c_on_any_line(sweep: list[list[Any]], phase: str) -> None:
    assert [bad for bad in sweep if bad[0] == phase] == []


def test_ctrl_c_on_any_line_of_leaving(sweep: list[list[Any]]) -> None:
    """Nothing in Python helps against a signal before the first ``try`` or ``with`` of ``__exit__``; from there on all is safe."""
    source = Path(context_module.__file__).read_text().splitlines()

    def too_early(phase: str, file: str, function: str, line: int, offset: int, problems: list[str]) -> bool:
        if (file, function) != ("context.py", "__exit__"):
            return file == "dynamo.py"
        above = source[line - offset : line - 1]
        return not any(text.strip().startswith(("try:", "with ")) for text in above)

    assert [bad for bad in sweep if bad[0] == "leaving" and not too_early(*bad)] == []


# --- changes by somebody else ------------------------------------------------------------------------------------------


def test_a_foreign_change_is_told_with_both_values(library: Globals) -> None:
    hold = apply.apply(NEW, "with-block at train.py:12")
    library.update(a="foreign a", b="foreign b")
    with pytest.warns(MsctxWarning) as told:
        apply.undo(hold)
    assert len(told) == 1
    text = str(told[0].message)
    assert "a: with-block at train.py:12 wrote 1, found 'foreign a' at exit" in text
    assert "b: with-block at train.py:12 wrote 2, found 'foreign b' at exit" in text
    assert "c: " not in text
    assert library == FOUND


def test_a_foreign_change_is_an_error_under_strict_once_all_is_back(library: Globals) -> None:
    hold = apply.apply(NEW, "one")
    library["b"] = "foreign"
    with pytest.raises(RestoreError, match="wrote 2, found 'foreign'"):
        apply.undo(hold, strict=True)
    assert library == FOUND


def test_a_foreign_change_in_a_with_block(exact_state: State) -> None:
    before = exact_state()
    with pytest.warns(MsctxWarning, match=r"torch\.num_threads: with-block at test_apply\.py:\d+ wrote 1, found 2 at exit"):  # noqa: SIM117
        with msctx.context(runtime_num_threads=1):
            torch.set_num_threads(2)
    assert exact_state() == before
    with pytest.raises(RestoreError, match="wrote 1, found 2"), msctx.context(runtime_num_threads=1, strict=True):
        torch.set_num_threads(2)
    assert exact_state() == before


def test_nothing_is_told_when_nobody_changed_anything(held: Held) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with held({"torch.num_threads": 1, "torch.cudnn.allow_tf32": False, "torch.inductor.deterministic": True}):
            pass


# --- the base ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def base(library: Globals) -> Iterator[apply.Hold]:
    hold = apply.Hold("set_context", base=True)
    yield hold
    apply.rebase(hold, {})
    assert library == FOUND


def test_the_base_is_changed_and_taken_away(library: Globals, base: apply.Hold) -> None:
    assert apply.rebase(base, {"a": 1, "b": 2}) == []
    assert library == {"a": 1, "b": 2, "c": "c found"}
    apply.rebase(base, {"b": 3, "c": 3})
    assert library == {"a": "a found", "b": 3, "c": 3}
    apply.rebase(base, {})
    assert library == FOUND


def test_a_scope_covers_the_base_until_it_closes(library: Globals, base: apply.Hold) -> None:
    scope = apply.apply({"a": "scope"}, "scope")
    assert apply.rebase(base, {"a": "base", "b": "base"}) == ["a"]
    assert library == {"a": "scope", "b": "base", "c": "c found"}
    apply.undo(scope)
    assert library == {"a": "base", "b": "base", "c": "c found"}
    scope = apply.apply({"a": "scope"}, "scope")
    assert apply.rebase(base, {}) == ["a"]
    assert library == {"a": "scope", "b": "b found", "c": "c found"}
    apply.undo(scope)


def fail_at_b(library: Globals) -> Callable[[str, Any], None]:
    def fail(name: str, value: Any) -> None:
        if (name, value) == ("b", 2):
            library["b"] = "half written"
            raise RuntimeError("no")

    return fail


@pytest.mark.parametrize("earlier", [{}, {"a": "base"}, {"a": "base", "b": "base"}, {"c": "base"}], ids=str)
def test_a_base_that_fails_half_way_is_what_it_was(library: Globals, base: apply.Hold, earlier: dict[str, Any]) -> None:
    apply.rebase(base, earlier)
    before = dict(library)
    library.on_write = fail_at_b(library)
    with pytest.raises(SwitchError, match="b did not take 2: no"):
        apply.rebase(base, NEW)
    library.on_write = lambda name, value: None
    assert library == before
    apply.rebase(base, {})
    assert library == FOUND


@pytest.mark.parametrize("earlier", [{}, {"b": "BASE"}], ids=str)
def test_the_base_is_read_back(
    library: Globals, base: apply.Hold, earlier: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    apply.rebase(base, earlier)
    before = dict(library)
    with monkeypatch.context() as patch:
        change_one(patch, "b", write=lambda value: library.update(b="X" if value == "x" else value))
        with pytest.raises(SwitchError, match="b did not take 'x': it reads 'X'"):
            apply.rebase(base, {"a": 1, "b": "x"})
    assert library == before


def test_ctrl_c_during_a_change_of_the_base(library: Globals, base: apply.Hold) -> None:
    library.on_write = lambda name, value: signal.raise_signal(signal.SIGINT) if (name, value) == ("b", 2) else None
    with pytest.raises(KeyboardInterrupt):
        apply.rebase(base, NEW)
    library.on_write = lambda name, value: None
    assert library in (FOUND, NEW), "neither the old base nor the new one"
    apply.rebase(base, {})


# --- threads ----------------------------------------------------------------------------------------------------------


def in_thread(function: Callable[[], Any]) -> Any:
    """Run in another thread and hand its result or its error over."""
    result: list[Any] = []

    def run() -> None:
        try:
            result.append(function())
        except BaseException as error:
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert result, "the thread hangs"
    if isinstance(result[0], BaseException):
        raise result[0]
    return result[0]


def test_a_switch_of_the_process_has_one_thread_at_a_time(library: Globals) -> None:
    hold = apply.apply({"a": 1}, "with-block at one.py:1")
    before = dict(library)
    with pytest.raises(ScopeError, match=r"other: a belongs to the whole process, and the with-block at one\.py:1 of another"):
        in_thread(lambda: apply.apply({"b": 2, "a": 2}, "other"))
    assert library == before
    in_thread(lambda: apply.undo(apply.apply({"b": 2, "c": 2}, "other")))
    assert library == before
    apply.undo(hold)
    in_thread(lambda: apply.undo(apply.apply({"b": 2, "a": 2}, "other")))
    assert library == FOUND


def test_a_switch_of_the_thread_is_each_threads_own(library: Globals, monkeypatch: pytest.MonkeyPatch) -> None:
    change_one(monkeypatch, "a", scope="thread")
    hold = apply.apply({"a": 1}, "one")
    in_thread(lambda: apply.undo(apply.apply({"a": 2}, "other")))
    assert library["a"] == 1
    apply.undo(hold)
    assert library == FOUND


# --- switches that cannot be put back -----------------------------------------------------------------------------------


@pytest.fixture
def lasting(library: Globals, monkeypatch: pytest.MonkeyPatch) -> Globals:
    """The switch b stays as it is written."""
    change_one(monkeypatch, "b", restore="never", only_before="the flood")
    return library


def test_a_lasting_switch_stays_and_says_so_once(lasting: Globals) -> None:
    with pytest.warns(MsctxWarning, match="b=2 stays after this with-block") as told:
        apply.undo(apply.apply(NEW, "one"))
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        apply.undo(apply.apply(NEW, "one"))
    assert lasting == {**FOUND, "b": 2}


def test_a_lasting_switch_is_refused_under_strict(lasting: Globals) -> None:
    with pytest.raises(StrictError, match="b cannot be put back"):
        apply.apply(NEW, "one", strict=True)
    assert lasting == FOUND
    assert not lasting.log
    lasting["b"] = 2
    apply.undo(apply.apply(NEW, "one", strict=True))  # it has the value already: nothing would stay


def test_the_base_sets_a_lasting_switch_without_a_warning(lasting: Globals) -> None:
    base = apply.Hold("set_context", base=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        apply.rebase(base, NEW, strict=True)
    apply.rebase(base, {})
    assert lasting == {**FOUND, "b": 2}


def test_inter_op_threads_stay_after_a_with_block(passes: Passes) -> None:
    passes("""
        import warnings, torch, msctx
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
        assert any("can only be set before" in str(w.message) for w in told), told
        assert torch.get_num_interop_threads() == wanted
    """)


def test_inter_op_threads_by_set_context(passes: Passes) -> None:
    passes("""
        import warnings, torch, msctx
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
    """)


# --- the precision switches -------------------------------------------------------------------------------------------
# States that programs bring about with torch's public APIs, old and new.

STARTS: dict[str, Callable[[], Any]] = {
    "old: high": lambda: torch.set_float32_matmul_precision("high"),
    "old: medium": lambda: torch.set_float32_matmul_precision("medium"),
    "old: cublas on": lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    "old: cudnn off": lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
    "old: cudnn on": lambda: setattr(torch.backends.cudnn, "allow_tf32", True),
    "new: generic tf32": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    "new: generic ieee": lambda: setattr(torch.backends, "fp32_precision", "ieee"),
    "new: generic bf16": lambda: setattr(torch.backends.mkldnn, "fp32_precision", "bf16"),  # trap 2
    "new: cuda tf32": lambda: setattr(torch.backends.cudnn, "fp32_precision", "tf32"),
    "new: cuda ieee": lambda: setattr(torch.backends.cudnn, "fp32_precision", "ieee"),
    "new: cuda.matmul tf32": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    "new: cuda.matmul ieee": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "ieee"),
    "new: cudnn.conv ieee": lambda: setattr(torch.backends.cudnn.conv, "fp32_precision", "ieee"),
    "new: cudnn.conv none": lambda: setattr(torch.backends.cudnn.conv, "fp32_precision", "none"),
    "new: mkldnn.matmul bf16": lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
    "new: mkldnn.matmul tf32": lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "tf32"),
    "mixed: high, then cuda.matmul ieee": lambda: (
        torch.set_float32_matmul_precision("high"),
        setattr(torch.backends.cuda.matmul, "fp32_precision", "ieee"),
    ),
    "mixed: cublas on, then mkldnn.matmul bf16": lambda: (
        setattr(torch.backends.cuda.matmul, "allow_tf32", True),
        setattr(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
    ),
    "mixed: cudnn off, then generic tf32": lambda: (
        setattr(torch.backends.cudnn, "allow_tf32", False),
        setattr(torch.backends, "fp32_precision", "tf32"),
    ),
}
TF32 = ("torch.cudnn.allow_tf32", "torch.cuda.matmul.allow_tf32")


@pytest.fixture
def start(request: pytest.FixtureRequest, torch_as_found: None) -> str:
    STARTS[request.param]()
    return request.param


def old_getters() -> dict[str, Any]:
    """What code that knows only the old API gets to see."""
    found: dict[str, Any] = {}
    for getter in (_C._get_float32_matmul_precision, _C._get_cublas_allow_tf32, _C._get_cudnn_allow_tf32):
        try:
            found[getter.__name__] = getter()
        except RuntimeError:
            found[getter.__name__] = "raises"
    return found


@pytest.mark.parametrize("start", STARTS, indirect=True)
@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("names", [TF32[:1], TF32[1:], TF32], ids=["conv", "matmul", "both"])
def test_tf32_is_exactly_restored_from_any_state(
    held: Held, exact_state: State, start: str, value: bool, names: tuple[str, ...]
) -> None:
    before, getters = exact_state(), old_getters()
    with held(dict.fromkeys(names, value)):
        state = msctx.state()
        assert {state[name] for name in names} == {value}
        nodes = {"torch.cudnn.allow_tf32": ("conv", "rnn"), "torch.cuda.matmul.allow_tf32": ("matmul",)}
        for op in (op for name in names for op in nodes[name]):
            assert (state[f"torch.fp32_precision.cuda.{op}"] == "tf32") is value
        if names[0] == "torch.cudnn.allow_tf32":
            assert old_getters()["_get_cudnn_allow_tf32"] is value, "torch.backends.cudnn.flags() raises inside the scope"
    assert exact_state() == before
    assert old_getters() == getters


@pytest.mark.parametrize("start", ["old: high", "old: medium", "old: cublas on", "old: cudnn off"], indirect=True)
def test_old_getters_that_answered_before_answer_inside(held: Held, start: str) -> None:
    """The commonest line of all, set_float32_matmul_precision("high"), must not make a scope a trap for other code."""
    for value in (True, False):
        with held(dict.fromkeys(TF32, value)):
            assert "raises" not in old_getters().values(), old_getters()


PRISTINE = """
import warnings, torch, msctx
from msctx import apply
node = torch._C._get_fp32_precision_getter
def follows_generic():
    "In a fresh process cuDNN's nodes are tf32 only until a parent says otherwise; torch cannot set them to that again."
    with torch.backends.flags(fp32_precision="ieee"):
        return (node("cuda", "conv"), node("cuda", "rnn")) == ("ieee", "ieee")
assert follows_generic(), "torch's start has changed"
"""


def test_a_scope_that_changes_nothing_leaves_a_fresh_process_fresh(passes: Passes) -> None:
    code = PRISTINE + textwrap.dedent("""
        msctx.state()
        assert follows_generic(), "reading the state wrote a node"
        apply.undo(apply.apply({"torch.cuda.matmul.allow_tf32": True}, "one"))
        assert follows_generic(), "the switch for matmul wrote cuDNN's nodes"
        apply.undo(apply.apply({"torch.cudnn.allow_tf32": True}, "one"))
        assert follows_generic(), "nothing was to be written: it was True already"
    """)
    passes(code)


def test_cudnns_first_state_is_restored_or_it_is_told(passes: Passes) -> None:
    """Exact, or said so: on the switch, by a warning, or in the plan; never a silent difference."""
    code = PRISTINE + textwrap.dedent("""
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            apply.undo(apply.apply({"torch.cudnn.allow_tf32": False}, "one"))
        (row,) = msctx.explain({"gpu_config": {"conv_allow_tf32": False}}, device="cuda").rows
        honest = told or "no longer reaches cuDNN" in row.reason
        assert follows_generic() or honest, "torch.backends.fp32_precision no longer reaches cuDNN, and nobody said so"
    """)
    passes(code)


# --- the detector of leaks ----------------------------------------------------------------------------------------------

LEAKS = """
import os, torch, msctx, pytest
from torch.nn.modules import module
from msctx import apply

def test_flag():
    torch._C._set_mkldnn_deterministic(True)

def test_variable():
    os.environ["OMP_LEAKED"] = "1"

def test_scope():
    msctx.context(runtime_num_threads=1).__enter__()

def test_base():
    msctx.set_context(max_call_depth=77)

def test_base_that_assigns_nothing():
    msctx.set_context(strict=True)

def test_hook():
    module.register_module_forward_hook(lambda *call: None)

def test_precision():
    torch.backends.mkldnn.rnn.fp32_precision = "bf16"

def test_random_numbers():
    torch.manual_seed(5)

def test_clean(request):
    assert torch.initial_seed() != 5
    assert msctx.get_context("strict") is None
    assert not torch._C._get_mkldnn_deterministic()
    assert torch.get_num_threads() == request.config.threads
    with msctx.context(deterministic="ON", runtime_num_threads=1):
        pass

def pytest_configure(config):
    config.threads = torch.get_num_threads()
"""


def test_the_detector_fails_exactly_the_tests_that_leak(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(Path(__file__).with_name("conftest.py").read_text())
    (tmp_path / "test_leaks.py").write_text(LEAKS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-rA",
        "-p",
        "no:cacheprovider",
        "-p",
        "test_leaks",
        "--rootdir=.",
        "test_leaks.py",
    ]
    variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    variables["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(Path(__file__).resolve().parents[1])])
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=variables)
    told = done.stdout
    failed = {line.split("::")[1].split()[0] for line in told.splitlines() if line.startswith(("ERROR ", "FAILED "))}
    assert failed == {
        "test_flag",
        "test_variable",
        "test_scope",
        "test_base",
        "test_base_that_assigns_nothing",
        "test_hook",
        "test_precision",
    }, told
    assert done.returncode == 1, told
    assert "torch.mkldnn.deterministic: False became True" in told
    assert "env.OMP_LEAKED: None became '1'" in told
    assert "is still open" in told
    assert "the set_context layer is still in force" in told


def test_a_variable_that_would_stay_is_taken_back_when_warnings_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HCCL_DETERMINISTIC", raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(MsctxWarning, match="stays after this with-block"):
            apply.apply({"env.HCCL_DETERMINISTIC": "true"}, "one")
    assert "HCCL_DETERMINISTIC" not in os.environ

"""Ctrl-C at every moment: while switches are written and put back, and on each line that msctx runs."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from context_helpers import context_module
from imagined import FOUND, NEW, Globals

from msctx import apply


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


def test_ctrl_c_during_a_change_of_the_base(library: Globals, base: apply.Hold) -> None:
    library.on_write = lambda name, value: signal.raise_signal(signal.SIGINT) if (name, value) == ("b", 2) else None
    with pytest.raises(KeyboardInterrupt):
        apply.rebase(base, NEW)
    library.on_write = lambda name, value: None
    assert library in (FOUND, NEW), "neither the old base nor the new one"
    apply.rebase(base, {})


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

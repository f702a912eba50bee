"""Ctrl-C, other signals whose handlers raise, and any exception: while switches are written and put back, and on each line."""

import json
import signal
import subprocess
import sys
from typing import Any

import pytest
from fake_switches import FOUND, NEW, Globals

from msctx.context import ledger
from msctx.context.ledger import rebase


@pytest.mark.parametrize("at", ["a", "b", "c"])
def test_ctrl_c_during_a_write(library: Globals, at: str) -> None:
    library.on_write = lambda name, value: signal.raise_signal(signal.SIGINT) if (name, value) == (at, NEW[at]) else None
    with pytest.raises(KeyboardInterrupt):
        ledger.apply(NEW, "one")
    assert library == FOUND
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("at", ["a", "b", "c"])
def test_ctrl_c_during_a_restore(library: Globals, at: str) -> None:
    hold = ledger.apply(NEW, "one")
    library.on_write = lambda name, value: signal.raise_signal(signal.SIGINT) if (name, value) == (at, FOUND[at]) else None
    with pytest.raises(KeyboardInterrupt):
        ledger.undo(hold)
    assert library == FOUND
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_during_a_write_that_fails(library: Globals) -> None:
    def both(name: str, value: Any) -> None:
        if (name, value) == ("b", 2):
            signal.raise_signal(signal.SIGINT)
            raise RuntimeError("no")

    library.on_write = both
    with pytest.raises(KeyboardInterrupt):
        ledger.apply(NEW, "one")
    assert library == FOUND


def test_a_handler_that_does_not_raise_leaves_the_scope_in_force(library: Globals) -> None:
    seen: list[int] = []
    found = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        library.on_write = lambda name, value: signal.raise_signal(signal.SIGINT) if (name, value) == ("b", 2) else None
        hold = ledger.apply(NEW, "one")
        assert seen == [signal.SIGINT], "the program's own handler was not called"
        assert library == NEW, "apply() returned as if the scope were in force, and it is not"
        ledger.undo(hold)
        assert library == FOUND
    finally:
        signal.signal(signal.SIGINT, found)


def test_ctrl_c_during_a_change_of_the_base(library: Globals, base: ledger.Hold) -> None:
    library.on_write = lambda name, value: signal.raise_signal(signal.SIGINT) if (name, value) == ("b", 2) else None
    with pytest.raises(KeyboardInterrupt):
        rebase(base, NEW)
    library.on_write = lambda name, value: None
    assert library in (FOUND, NEW), "neither the old base nor the new one"
    rebase(base, {})


SWEEP = """
import json, linecache, signal, sys
import msctx
from torch import nn
from msctx import signals
from msctx.context import ledger
from msctx.context.holds import HELD
from msctx.native import models
from msctx.switches import SWITCHES
HOW = sys.argv[1]
stack = sys.modules["msctx.context"].stack
class TimeLimit(Exception):
    "What the handler of a signal raises, as that of pytest-timeout does."
class Anything(BaseException):
    pass
def expire(number, frame):
    raise TimeLimit
signal.signal(signal.SIGALRM, expire)
def handlers():
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM, signal.SIGTERM)]
OPTIONS = dict(deterministic="ON", runtime_num_threads=1, max_call_depth=2000, seed=0, seed_scope=True)
NATIVE = dict(
    conv_fprop_algo="gemm", precision_mode="allow_mix_precision_bf16", max_device_memory="2GB", mempool_block_size="1GB",
    memory_optimize_level="O1",
)
MODEL = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
WATCHED = ("/msctx/", "/contextlib.py")
with msctx.context(**OPTIONS), msctx.context(**NATIVE) as context:
    context.watch(MODEL)
msctx.set_context(**OPTIONS)
msctx.reset_context()
found = msctx.state()

def with_block(say):
    context = msctx.context(**OPTIONS)
    say("entering")
    with context:
        say("leaving")

def native(say):
    context = msctx.context(**NATIVE)
    say("entering")
    with context:
        say("watching")
        context.watch(MODEL)
        say("leaving")

def set_context(say):
    say("setting")
    msctx.set_context(max_call_depth=2000, runtime_num_threads=1)
    say("resetting")
    msctx.reset_context()

def agree():
    "Whether what get_context says is what is in force."
    depth = msctx.get_context("max_call_depth", origin=True)
    return SWITCHES["torch.nn.max_call_depth"].read() == (None if depth.origin == "default" else depth.value)

def put_right():
    "After what was left behind, for the next attempt."
    for hold in {id(h): h for holds in HELD.values() for h in holds}.values():
        for record in reversed(hold.records.values()):
            record.put_back()
        hold.records.clear()
    HELD.clear()
    stack.scopes.clear()
    assert msctx.state() == found

KINDS = {}
def kinds(code):
    "Of each line of a function that is watched what it is; nothing of one at which no signal arrives."
    file = code.co_filename
    if not any(part in file for part in WATCHED):
        return {}
    found, leaves = {}, code.co_name == "__exit__" and "contextlib" in file
    for number in {number for _, _, number in code.co_lines() if number}:
        line = linecache.getline(file, number).strip()
        if line == "try:" or line.startswith(("begun: ", "entered: ")):
            continue  # no call, so Python looks for no signal; and it swallows what is raised in a finalizer
        # there Python has begun to leave a with-block, and nothing helps against any exception
        found[number] = "between" if leaves or line.startswith("with ") else "plain"
    return found

def attempt(action, n):
    "Do it with an exception on the n-th line that runs in msctx; return where that was, and what was left behind."
    count, place, phase, seen = 0, None, "", False
    def say(text):
        nonlocal phase
        phase = text
        sys.settrace(trace)
    def trace(frame, event, argument):
        nonlocal count, place
        code = frame.f_code
        _, lines = KINDS.get(id(code)) or KINDS.setdefault(id(code), (code, kinds(code)))
        if (kind := lines.get(frame.f_lineno)) is None:
            return trace if lines else None
        if event == "line" and not (HOW == "any" and kind == "between"):
            count += 1
            if count == n:
                first = frame.f_code.co_firstlineno
                place = [frame.f_code.co_filename.rpartition("/")[2], frame.f_code.co_name, frame.f_lineno, frame.f_lineno - first]
                sys.settrace(None)
                above = frame
                while above:
                    above.f_trace, above = None, above.f_back
                if HOW == "any":
                    raise Anything
                signal.raise_signal(getattr(signal, HOW))
        return trace
    try:
        action(say)
    except (KeyboardInterrupt, TimeLimit, Anything):
        seen = True
    sys.settrace(None)
    problems = [] if seen or place is None else [f"{HOW} was swallowed"]
    if not agree() and HOW != "any":
        problems.append("get_context and the switches disagree")
    if HOW != "any" and action is not set_context and (changed := msctx.diff(found, msctx.state())):
        problems.append(f"changed until reset_context(): {sorted(changed)}")
    msctx.reset_context()
    if handlers() != [signal.default_int_handler, expire, signal.SIG_DFL] or signals.waiting_now is not None:
        problems.append("the handlers of signals are not back")
        signal.signal(signal.SIGINT, signal.default_int_handler), signal.signal(signal.SIGALRM, expire)
        signals.waiting_now = None
    if stack.scopes or any(HELD.values()) or (HOW != "any" and models.OPEN):
        problems.append("still held")
    models.OPEN.clear()
    if changed := msctx.diff(found, msctx.state()):
        problems.append(f"changed: {sorted(changed)}")
    if problems:
        put_right()
    return place, phase, problems

bad, n = [], 0
for action, step in ((with_block, 2), (native, 22), (set_context, 2)):
    for n in range(1 + (HOW == "SIGALRM"), 10**6, 3 * step if HOW == "any" else step):  # every other line for each signal
        place, phase, problems = attempt(action, n)
        if place is None:
            break
        if problems:
            bad.append([phase, *place, problems])
    assert n > 200, "the trace saw nothing"
print(json.dumps(bad))
"""


@pytest.fixture(scope="module", params=["SIGINT", "SIGALRM", "any"])
def sweep(request: pytest.FixtureRequest) -> list[list[Any]]:
    """What goes wrong when a signal (one of two) comes on any line that msctx runs while a context is entered and left, and while
    set_context is; or any exception, on some lines. Signals change nothing; after another exception, reset_context() brings back what
    was found."""
    done = subprocess.run([sys.executable, "-c", SWEEP, request.param], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.full
@pytest.mark.parametrize("phase", ["entering", "watching", "leaving", "setting", "resetting"])
def test_an_exception_on_any_line(sweep: list[list[Any]], phase: str) -> None:
    assert [bad for bad in sweep if bad[0] == phase] == []

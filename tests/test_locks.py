"""A forked child finds the locks of msctx free, whoever held them in its parent."""

from collections.abc import Callable
from pathlib import Path

import msctx

FORK = """
import os, signal, sys, threading, time, warnings, torch
warnings.simplefilter("ignore")
torch.set_num_threads(1)
import msctx
from msctx import locks
from msctx.native import core
core.load()
x, w = torch.randn(1, 2, 6, 6), torch.randn(3, 2, 3, 3)

def work():
    with msctx.context(conv_fprop_algo="direct", deterministic="ON", precision_mode="allow_mix_precision_bf16") as ctx:
        torch.nn.functional.conv2d(x, w)
    assert {row.asked for row in ctx.choices()} == {"direct"}
    assert ctx.precisions()
    msctx.set_context(conv_fprop_algo="direct")
    msctx.reset_context()
    counted = sum(row.calls for row in msctx.choices())
    torch.nn.functional.conv2d(x, w)
    assert sum(row.calls for row in msctx.choices()) == counted, "what was asked for stays in force"

def child():
    if (pid := os.fork()) == 0:
        signal.alarm(10)
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code != -signal.SIGALRM, "the child hangs"
    assert code == 0, code

"""


def test_a_fork_while_another_thread_holds_every_lock(passes: Callable[[str], str]) -> None:
    passes(
        FORK
        + """
work()
held, release = threading.Event(), threading.Event()
made = list(locks._made)
assert len(made) > 10
def hold():
    for lock in made:
        lock.acquire()
    held.set()
    release.wait()
    for lock in made:
        lock.release()
thread = threading.Thread(target=hold)
thread.start()
held.wait()
try:
    child()
finally:
    release.set()
    thread.join()
work()
"""
    )


def test_forks_while_another_thread_enters_contexts(passes: Callable[[str], str]) -> None:
    passes(
        FORK
        + """
work()
stop = False
def loop():
    while not stop:
        with msctx.context(max_call_depth=500):
            pass
thread = threading.Thread(target=loop)
thread.start()
try:
    for _ in range(12):
        time.sleep(0.002)
        child()
finally:
    stop = True
    thread.join()
"""
    )


def test_a_fork_while_another_thread_enters_its_first_context(passes: Callable[[str], str]) -> None:
    """Python's own lock of a module that is being imported would never be free in the child."""
    passes(
        """
import importlib.abc, os, signal, sys, threading, time, torch, msctx

class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "msctx.context.ledger":
            begun.set()
            time.sleep(0.5)

def work():
    with msctx.context(deterministic="ON"):
        assert torch.are_deterministic_algorithms_enabled()

begun = threading.Event()
sys.meta_path.insert(0, Slow())
thread = threading.Thread(target=work)
thread.start()
begun.wait()
if (pid := os.fork()) == 0:
    signal.alarm(20)
    sys.meta_path.pop(0)
    from msctx.context import ledger
    os._exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
thread.join()
assert code == 0, code
"""
    )


IMPORTS = """
import importlib.abc, os, signal, sys, threading, time, warnings, torch
warnings.simplefilter("ignore")
import msctx
from msctx import locks

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        met(name)

sys.meta_path.insert(0, Finder())

def work():
    msctx.explain({"conv_fprop_algo": "gemm"})
    with msctx.context(conv_fprop_algo="gemm", deterministic="ON", precision_mode="allow_mix_precision_bf16") as ctx:
        ctx.watch(model := torch.nn.Sequential(torch.nn.Conv2d(2, 2, 3)))
        model(torch.randn(1, 2, 9, 9)).sum().backward()
    assert {row.ran for row in ctx.choices()} == {"gemm"}
    assert ctx.precisions()
    msctx.set_context("reproducible")
    msctx.reset_context()
    msctx.state()
    msctx.memory_stats()

"""


def test_what_is_imported_late_is_imported_where_a_fork_waits(passes: Callable[[str], str]) -> None:
    passes(
        IMPORTS
        + """
found = []
def met(name):
    if not locks.no_fork._is_owned() and not name.startswith("encodings."):
        found.append(name)
work()
assert "msctx.switches" in sys.modules
assert not found, found
"""
    )


def test_a_fork_while_another_thread_imports(passes: Callable[[str], str]) -> None:
    passes(
        IMPORTS
        + """
importing, forking = threading.Event(), threading.Event()
def met(name):
    if name == "pydantic" and threading.current_thread() is thread:
        importing.set()
        forking.wait()
        time.sleep(0.5)  # the fork would be done by now
thread = threading.Thread(target=work)
os.register_at_fork(before=forking.set)
thread.start()
importing.wait()
if (pid := os.fork()) == 0:
    signal.alarm(60)
    code = 1
    try:
        msctx.explain({"deterministic": "ON"})
        code = 0
    finally:
        os._exit(code)
thread.join()
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "the child hangs"
"""
    )


def test_the_thread_that_forks_keeps_what_it_holds(passes: Callable[[str], str]) -> None:
    passes(
        FORK
        + """
from msctx.context.base import BASE
with BASE.lock:
    if (pid := os.fork()) == 0:
        os._exit(0 if BASE.lock._is_owned() else 1)
assert os.waitpid(pid, 0)[1] == 0
"""
    )


def test_every_lock_is_one_of_these() -> None:
    root = Path(msctx.__file__).parent
    found = [
        str(p.relative_to(root))
        for p in root.rglob("*.py")
        if "threading.Lock()" in (t := p.read_text()) or "threading.RLock()" in t
    ]
    assert found == ["locks.py"], "a lock that a forked child may find held: make it with msctx.locks"

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
    assert {row.requested for row in ctx.choices()} == {"direct"}
    assert ctx.precisions()
    msctx.set_context(conv_fprop_algo="direct")
    msctx.reset_context()
    counted = sum(row.calls for row in msctx.choices())
    torch.nn.functional.conv2d(x, w)
    assert sum(row.calls for row in msctx.choices()) == counted, "what was requested stays in force"

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


def test_every_lock_is_one_of_these() -> None:
    root = Path(msctx.__file__).parent
    found = [
        str(p.relative_to(root))
        for p in root.rglob("*.py")
        if "threading.Lock()" in (t := p.read_text()) or "threading.RLock()" in t
    ]
    assert found == ["locks.py"], "a lock that a forked child may find held: make it with msctx.locks"

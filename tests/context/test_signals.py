"""Signals whose handlers raise, as those of time limits do: no scope is lost, however many come, and reset_context() takes back what
threads left that ended inside a scope."""

import ctypes
import signal
import threading
from collections.abc import Iterator

import pytest
import torch
from context_helpers import OwnError, Passes, State, context_module

import msctx
from msctx.context import ledger
from msctx.context.base import BASE
from msctx.context.holds import HELD
from msctx.errors import MsctxWarning
from msctx.signals import uninterrupted

OPTIONS = {"deterministic": "ON", "runtime_num_threads": 1, "max_call_depth": 2000}


class Alarm:
    """Its attribute raises the signal in C: Python sees it at the next instruction that looks for signals."""

    _as_parameter_ = int(signal.SIGALRM)
    rings = property(ctypes.CDLL(None)["raise"])


@pytest.fixture
def alarm() -> Iterator[Alarm]:
    """A signal whose handler raises OwnError."""

    def expire(number: int, frame: object) -> None:
        raise OwnError

    found = signal.signal(signal.SIGALRM, expire)
    yield Alarm()
    signal.signal(signal.SIGALRM, found)


def test_a_signal_at_the_first_instruction_of_leaving(alarm: Alarm, exact_state: State) -> None:
    before = exact_state()
    with pytest.raises(OwnError), msctx.context(**OPTIONS):
        alarm.rings  # noqa: B018
    assert exact_state() == before
    assert context_module.stack.scopes == []


def test_a_signal_as_an_inner_scope_is_left(alarm: Alarm, exact_state: State) -> None:
    before = exact_state()
    with pytest.raises(OwnError), msctx.context(**OPTIONS), msctx.context(runtime_num_threads=2):
        alarm.rings  # noqa: B018
    assert exact_state() == before


def test_a_handler_that_is_set_while_signals_wait_stays(alarm: Alarm) -> None:
    """After a Ctrl-C, a run that writes its record takes no notice of the next one."""
    with uninterrupted():
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_IGN


def test_an_exception_that_leaves_an_outer_scope_closes_the_inner_ones(exact_state: State) -> None:
    before = exact_state()
    inner = msctx.context(deterministic="ON")

    def work() -> None:
        with msctx.context(runtime_num_threads=1):
            inner.__enter__()
            raise OwnError

    with pytest.warns(MsctxWarning, match="was still open when an exception left the with-block"), pytest.raises(OwnError):
        work()
    assert exact_state() == before
    with pytest.raises(msctx.ScopeError, match="not open in this thread"):
        inner.__exit__(None, None, None)


def test_reset_takes_back_what_a_thread_left_that_ended_inside_scopes(exact_state: State) -> None:
    def end_inside() -> None:
        msctx.context(max_call_depth=77, runtime_num_threads=2).__enter__()
        msctx.context(max_call_depth=88).__enter__()

    before = exact_state()
    with msctx.context(deterministic="ON"):
        inside = exact_state()
        thread = threading.Thread(target=end_inside)
        thread.start()
        thread.join()
        assert ledger.SWITCHES["torch.nn.max_call_depth"].read() == 88
        msctx.reset_context()
        assert exact_state() == inside, "the open scope of this thread stays"
        assert torch.are_deterministic_algorithms_enabled()
        assert len(BASE.scopes) == 1
    assert exact_state() == before
    assert not HELD


STORM = """
import signal, sys, warnings
import torch, msctx
from torch import nn
from msctx import signals
from msctx.context import ledger
from msctx.context.holds import HELD
from msctx.context.base import BASE
from msctx.native import choices, models
warnings.simplefilter("ignore")
stack = sys.modules["msctx.context"].stack
class TimeLimit(Exception):
    pass
def expire(number, frame):
    "Raises wherever in a with-block the signal comes."
    frame = sys._getframe()
    while frame is not None and frame.f_code is not enter.__code__:
        frame = frame.f_back
    if frame is not None:
        raise TimeLimit
model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
x = torch.ones(1, 3, 4, 4)
PLAIN = dict(deterministic="ON", runtime_num_threads=1, max_call_depth=2000)
KINDS = [
    [PLAIN],
    [dict(seed=0, seed_scope=True)],
    [dict(conv_fprop_algo="gemm", conv_dgrad_algo="algo_0")],
    [dict(precision_mode="allow_mix_precision_bf16")],
    [dict(max_device_memory="2GB", mempool_block_size="1GB")],
    [dict(memory_optimize_level="O1")],
    [PLAIN, dict(conv_fprop_algo="gemm"), dict(runtime_num_threads=2, precision_mode="allow_mix_precision_bf16")],
]
def enter(kind, watch):
    if not kind:
        return model(x)
    with msctx.context(**kind[0]) as context:
        if watch:
            context.watch(model)
        enter(kind[1:], watch)
for kind in KINDS:
    enter(kind, True)
found, raised = msctx.state(), 0
for kind in KINDS * 5:
    for watch in (False, True):
        signal.signal(signal.SIGALRM, expire)
        try:
            signal.setitimer(signal.ITIMER_REAL, 200e-6, 200e-6)
            enter(kind, watch)
        except TimeLimit:
            raised += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        assert signal.getsignal(signal.SIGALRM) is expire and signals.waiting_now is None, "the handlers are not back"
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        msctx.reset_context()
        left = msctx.diff(found, msctx.state())
        assert not left, (kind, watch, left)
        assert not (stack.scopes or HELD or BASE.scopes or +models.OPEN or choices._early), (kind, watch)
assert raised > 20, f"{raised}: the storm did not come"
"""


@pytest.mark.full
def test_a_storm_of_signals_loses_no_switch(passes: Passes) -> None:
    """A handler that raises every 200 microseconds: while contexts of each kind are entered, entered inside each other and left."""
    passes(STORM)

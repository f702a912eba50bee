"""What a signal's handler raises while the core asks Python something: it is not lost, and what is being measured ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Passes = Callable[..., str]
LATE = """
import ctypes, os, signal, sys, threading, torch, msctx
from msctx.native import core, tuning
library = core.load()
class Alarm(Exception):
    pass
"""


@pytest.mark.full
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("handler", ["default", "raises"])
def test_a_signal_while_a_problem_is_measured(passes: Passes, tmp_path: Path, backward: bool, handler: str) -> None:
    """It arrives before the second problem of a call is measured: none is, and it is raised once the call is done."""
    passes(
        LATE
        + f"""
backward, number = {backward}, signal.SIGINT if {handler == "default"} else signal.SIGALRM
wanted = KeyboardInterrupt if number == signal.SIGINT else Alarm
def raises(*_):
    raise Alarm("time is up")
if wanted is Alarm:
    signal.signal(signal.SIGALRM, raises)
asked = []
ask = tuning._permission
def permission(*of):
    asked.append(of)
    answer = ask(*of)
    if len(asked) == 1:
        os.kill(os.getpid(), number)
    return answer
tuning._permission = permission
layers = torch.nn.Sequential(*(torch.nn.Conv2d(3, 3, 3 + 2 * n, padding=1 + n) for n in range(4)))
x = torch.randn(1, 3, 12, 12, requires_grad=True)
caught = None
options = dict(conv_dgrad_algo="performance", conv_wgrad_algo="performance") if backward else dict(conv_fprop_algo="performance")
with msctx.context(**options, tuning_file={str(tmp_path / "tuning.json")!r}) as ctx:
    try:
        y = layers(x).sum()
        if backward:
            y.backward()
        for _ in range(100):
            pass
    except wanted as error:
        caught = error
    except BaseException as error:
        raise SystemExit(f"another error: {{error!r}}")
    assert caught is not None, "it was lost"
    assert wanted is not Alarm or caught.args == ("time is up",)
    assert library.measurements() == 0, library.measurements()
    with torch.no_grad():
        layers(x)  # and the process goes on
"""
    )


def test_a_handler_that_raises_while_a_warning_is_given(passes: Passes) -> None:
    passes(
        LATE
        + """
import warnings
shown = []
def show(*_, **__):
    shown.append(1)
    os.kill(os.getpid(), signal.SIGINT)
warnings.showwarning = show
with msctx.context(conv_fprop_algo="winograd"):
    try:
        torch.conv2d(torch.randn(1, 2, 6, 6), torch.randn(2, 2, 2, 2))
        for _ in range(100):
            pass
    except KeyboardInterrupt:
        shown.append(2)
assert shown == [1, 2], shown
"""
    )


LOOKING = """
import faulthandler, random, signal, time, torch, msctx
faulthandler.dump_traceback_later(60, exit=True)
x, w, a = torch.randn(1, 3, 8, 8), torch.randn(3, 3, 3, 3), torch.randn(8, 8)
"""


ALARM = (
    LOOKING
    + """
class Alarm(Exception):
    pass
def handler(*_):
    raise Alarm
signal.signal(signal.SIGALRM, handler)
"""
)


@pytest.mark.full
@pytest.mark.parametrize("look", ["choices", "precisions"])
def test_a_handler_that_looks_or_enters_while_the_program_looks(passes: Passes, look: str) -> None:
    passes(
        LOOKING
        + f"""
seen = []
def handler(*_):
    seen.append(len(ctx.{look}()))
    with msctx.context(precision_mode="force_fp32"):
        pass
    signal.setitimer(signal.ITIMER_REAL, 0.0003 + 0.001 * random.random())
with msctx.context(precision_mode="allow_mix_precision_bf16", conv_fprop_algo="gemm") as ctx:
    torch.conv2d(x, w), a @ a
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0005)
    end = time.time() + 1.5
    while time.time() < end:
        ctx.{look}()
    signal.setitimer(signal.ITIMER_REAL, 0)
assert len(seen) > 10 and set(seen[1:]) == {{seen[1]}}, seen
"""
    )


@pytest.mark.full
def test_a_handler_that_raises_while_memory_is_looked_at(passes: Passes) -> None:
    """No guard of torch's outlives the context that it was set in."""
    passes(
        ALARM
        + """
model, own, kept = torch.nn.Linear(8, 8), a @ a, []
for _ in range(300):
    try:
        with msctx.context(precision_mode="allow_mix_precision_bf16") as ctx:
            ctx.watch(model)
            signal.setitimer(signal.ITIMER_REAL, 10 ** random.uniform(-5, -3.3))
            for _ in range(20):
                msctx.memory_stats()
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Alarm as error:
        kept = [error]  # with its frames
    assert torch.equal(a @ a, own)
assert kept
"""
    )


RAISING = (
    ALARM
    + """
def interrupted(call, low, high, times):
    found = 0
    for _ in range(times):
        try:
            signal.setitimer(signal.ITIMER_REAL, 10 ** random.uniform(low, high))
            for _ in range(4):
                call()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Alarm:
            found += 1
        yield
    assert found > times / 10, found
"""
)


@pytest.mark.full
def test_a_handler_that_raises_in_named_modules(passes: Passes, tmp_path: Path) -> None:
    """Their policies do not outlive their calls."""
    file = tmp_path / "ops.ini"
    file.write_text("[ByNodeName]\n0=high_precision\n2=high_precision\n4=high_precision\n")
    passes(
        RAISING
        + f"""
layers = [torch.nn.Linear(8, 8), torch.nn.ReLU()] * 3
model, probe = torch.nn.Sequential(*layers), torch.nn.Linear(8, 8)
with msctx.context(precision_mode="allow_mix_precision_bf16", op_precision_mode={str(file)!r}) as ctx:
    ctx.watch(model)
    good = model(a)
    for _ in interrupted(lambda: model(a), -5, -3.3, 400):
        assert probe(a).dtype == torch.bfloat16
        assert torch.equal(model(a), good)
"""
    )


@pytest.mark.full
def test_a_handler_that_raises_in_a_bound_function(passes: Passes) -> None:
    passes(
        RAISING
        + """
import threading
ready, done, found = threading.Event(), threading.Event(), []
def hold():
    options = {"precision_mode": "allow_mix_precision_bf16", "default_device": True, "device_target": "CPU"}
    with msctx.context(**options) as ctx:
        found.append(ctx.bind(lambda: (a @ a).dtype))
        ready.set()
        done.wait()
thread = threading.Thread(target=hold)
thread.start()
ready.wait()
(bound,) = found
assert bound() == torch.bfloat16
def state():
    return {name: value for name, value in msctx.state().items() if not name.startswith("rng.")}
before = state()
for _ in interrupted(bound, -5, -2.5, 250):
    assert (a @ a).dtype == torch.float32
    assert state() == before, {name: (value, before.get(name)) for name, value in state().items() if value != before.get(name)}
done.set()
thread.join()
"""
    )

"""context.py: scopes, layers and who wins, other threads and processes, compiled code, and what each built option does."""

import asyncio
import functools
import gc
import importlib
import multiprocessing
import pickle
import random
import re
import signal
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import _C

import msctx
from msctx import apply, devices
from msctx import base as base_module
from msctx.errors import DeviceError, MsctxWarning, OptionError, RestoreError, ScopeError, StrictError

context_module = importlib.import_module("msctx.context")
State = Callable[[], dict[str, Any]]
Passes = Callable[..., str]
quiet = pytest.mark.filterwarnings("ignore::msctx.errors.MsctxWarning")
without_cuda = pytest.mark.skipif("cuda" in devices.here(), reason="there is a CUDA device")


@pytest.fixture
def base() -> Iterator[None]:
    """For tests of set_context: takes it back at the end."""
    yield
    msctx.reset_context()


def threads() -> int:
    return torch.get_num_threads()


def in_thread(function: Callable[[], Any]) -> Any:
    """Run in another thread and hand its result or its error over."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(60)


class Elsewhere:
    """Another thread that does one thing after the other, on command."""

    def __enter__(self) -> "Elsewhere":
        self._pool = ThreadPoolExecutor(1)
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def do(self, function: Callable[..., Any], *args: Any) -> Any:
        return self._pool.submit(function, *args).result(60)


class OwnError(Exception):
    pass


# --- with-blocks and decorators ---------------------------------------------------------------------------------------


def test_with_block(exact_state: State) -> None:
    before = exact_state()
    with msctx.context(runtime_num_threads=1, deterministic="ON") as ctx:
        assert threads() == 1
        assert torch.are_deterministic_algorithms_enabled()
        assert msctx.current() is ctx
        assert ctx.get("deterministic") == "ON"
        assert str(ctx.device) == "cpu"
    assert exact_state() == before
    assert msctx.current() is not ctx


@pytest.mark.parametrize("error", [OwnError, KeyboardInterrupt, SystemExit])
def test_with_block_left_by_an_exception(exact_state: State, error: type[BaseException]) -> None:
    before = exact_state()

    def fail() -> None:
        with msctx.context(deterministic="ON"), msctx.context(runtime_num_threads=1, max_call_depth=9000):
            raise error

    with pytest.raises(error):
        fail()
    assert exact_state() == before


def test_a_context_does_nothing_before_it_is_entered(exact_state: State) -> None:
    before = exact_state()
    ctx = msctx.context(deterministic="ON")
    assert exact_state() == before
    with ctx:
        assert exact_state() != before


def test_decorator(exact_state: State) -> None:
    before = exact_state()

    @msctx.context(runtime_num_threads=1)
    def count(extra: int, *, more: int = 0) -> int:
        """How many."""
        return threads() + extra + more

    assert count(10, more=100) == 111
    assert exact_state() == before
    assert (count.__name__, count.__doc__) == ("count", "How many.")

    @msctx.context(runtime_num_threads=1)
    def fail() -> None:
        raise OwnError

    with pytest.raises(OwnError):
        fail()
    assert exact_state() == before


def test_decorated_methods_and_recursion() -> None:
    ctx = msctx.context(runtime_num_threads=1)

    class Model:
        @ctx
        def depth(self, n: int) -> list[int]:
            return [threads(), *(self.depth(n - 1) if n else [])]

    assert Model().depth(5) == [1] * 6
    assert msctx.current() is not ctx


def a_generator() -> Iterator[None]:
    yield


async def a_coroutine() -> None: ...


async def an_async_generator() -> Any:
    yield


class AClass:
    pass


@pytest.mark.parametrize(
    "thing",
    [
        pytest.param(a_generator, id="generator"),
        pytest.param(a_coroutine, id="coroutine"),
        pytest.param(an_async_generator, id="async generator"),
        pytest.param(AClass, id="class"),
        pytest.param(functools.partial(a_generator), id="partial generator"),
        pytest.param(functools.partial(a_coroutine), id="partial coroutine"),
        pytest.param(5, id="number"),
        pytest.param(None, id="None"),
    ],
)
def test_decorating_what_outlives_its_call_is_refused(thing: Any) -> None:
    with pytest.raises(TypeError):
        msctx.context(seed=0)(thing)


def test_a_coroutine_may_use_a_with_block() -> None:
    async def work() -> int:
        with msctx.context(runtime_num_threads=1):
            return threads()

    assert asyncio.run(work()) == 1


def test_nesting(exact_state: State) -> None:
    states = [exact_state()]
    with ExitStack() as stack:
        for options in (
            {"runtime_num_threads": 1},
            {"deterministic": "ON"},
            {"deterministic": "OFF", "runtime_num_threads": 2},
            {"max_call_depth": 5000},
            {"deterministic": "ON", "fill_uninitialized_memory": False},
        ):
            stack.enter_context(msctx.context(**options))
            stack.callback(lambda expected: states.append(exact_state() == expected), exact_state())
        assert threads() == 2
        assert torch.are_deterministic_algorithms_enabled()
    assert states[1:] == [True] * 5
    assert exact_state() == states[0]


def test_one_context_is_entered_again_and_inside_itself(exact_state: State) -> None:
    before = exact_state()
    ctx = msctx.context(runtime_num_threads=1)
    for _ in range(2):
        with ctx:
            with msctx.context(runtime_num_threads=2):
                with ctx:
                    assert threads() == 1
                assert threads() == 2
            assert threads() == 1
        assert exact_state() == before


def test_entering_inside_a_call_under_the_same_context() -> None:
    ctx = msctx.context(max_call_depth=50)
    with ctx, ctx, ctx:
        assert msctx.get_context("max_call_depth") == 50


# --- nothing but what was asked ---------------------------------------------------------------------------------------

BUILT: list[dict[str, Any]] = [
    {"deterministic": "ON"},
    {"deterministic": "OFF"},
    {"deterministic": "ON", "deterministic_warn_only": True, "fill_uninitialized_memory": False},
    {"runtime_num_threads": 1},
    {"runtime_num_threads": 0},
    {"pynative_synchronize": True},
    {"pynative_synchronize": False},
    {"max_call_depth": 10},
    {"max_call_depth": 5000},
    {"seed": 0},
    {"seed_scope": True},
    {"seed_scope": False},
    {"strict": True},
    {"strict": False},
    {"device_target": "CPU"},
    {"device_target": "CPU", "device_id": 0},
    {"device_target": "CPU", "default_device": True},
    {"device_target": "CPU", "default_device": False},
]
DERIVED = {"torch.inductor.deterministic": {"env.TORCHINDUCTOR_DETERMINISTIC"}}


def test_no_options_change_nothing(exact_state: State) -> None:
    before = exact_state()
    generators = random.getstate(), torch.get_rng_state().tolist()
    with msctx.context() as ctx:
        assert exact_state() == before
        assert not ctx.plan.assignments
    assert (random.getstate(), torch.get_rng_state().tolist()) == generators


@pytest.mark.parametrize("options", BUILT, ids=str)
def test_an_option_changes_exactly_what_its_plan_says(exact_state: State, options: dict[str, Any]) -> None:
    before = exact_state()
    generators = torch.get_rng_state().tolist()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with msctx.context(**options) as ctx:
            plan = ctx.plan.assignments
            changed = {key: now for key, (_, now) in msctx.diff(before, exact_state()).items() if "." in key}
            assert (torch.get_rng_state().tolist() == generators) is ("seed" not in options)
            for switch, value in plan.items():
                assert switch.startswith("rng.") or msctx.state()[switch] == value
    allowed = {*plan, *(key for switch in plan for key in DERIVED.get(switch, ()))}
    assert set(changed) <= allowed
    assert exact_state() == before


@pytest.mark.parametrize("options", [{"deterministic": "ON", "runtime_num_threads": 1}, {"max_call_depth": 5000}], ids=str)
def test_an_inner_scope_writes_only_its_own(exact_state: State, options: dict[str, Any]) -> None:
    with msctx.context(**options):
        torch._C._set_mkldnn_deterministic(False)  # by the user, inside
        torch.set_num_threads(2)
        inside = exact_state()
        for inner in ({"seed_scope": True}, {"device_target": "CPU"}, {}):
            with msctx.context(**inner):
                assert exact_state() == inside, "the outer scope's options were written again"
            assert exact_state() == inside
        torch._C._set_mkldnn_deterministic(options.get("deterministic") == "ON")
        torch.set_num_threads(options.get("runtime_num_threads", 2))
    assert threads() == 2


def test_importing_msctx_changes_and_reads_nothing(passes: Passes) -> None:
    code = """
        import sys, torch
        flags = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads(), sys.getrecursionlimit()
        import msctx
        assert (torch.are_deterministic_algorithms_enabled(), torch.get_num_threads(), sys.getrecursionlimit()) == flags
        msctx.state()
        assert (torch.are_deterministic_algorithms_enabled(), torch.get_num_threads(), sys.getrecursionlimit()) == flags
        try:
            with msctx.context(runtime_num_threads=1):
                raise SystemExit("MSCTX_MAX_CALL_DEPTH=many was taken")
        except msctx.OptionError as error:
            assert "MSCTX_MAX_CALL_DEPTH" in str(error), error
        assert torch.get_num_threads() == flags[1]
        import os
        os.environ["MSCTX_MAX_CALL_DEPTH"] = "3000"
        assert msctx.get_context("max_call_depth", origin=True) == (3000, "environment MSCTX_MAX_CALL_DEPTH")
        assert torch.are_deterministic_algorithms_enabled()
        with msctx.context(deterministic="OFF"):
            assert not torch.are_deterministic_algorithms_enabled()
        assert torch.are_deterministic_algorithms_enabled()
    """
    passes(code, env={"MSCTX_DETERMINISTIC": "ON", "MSCTX_MAX_CALL_DEPTH": "many"})


# --- who wins ---------------------------------------------------------------------------------------------------------


def test_each_layer_beats_the_one_below(base: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    preset = tmp_path / "mine.yaml"
    preset.write_text("context:\n  max_call_depth: 2001\n")

    def found() -> tuple[int, str]:
        value, origin = msctx.get_context("max_call_depth", origin=True)
        assert value == 1000 or apply.SWITCHES["torch.nn.max_call_depth"].read() == value
        return value, origin

    assert found() == (1000, "default")
    monkeypatch.setenv("MSCTX_PRESET", str(preset))
    msctx.reset_context()
    value, origin = found()
    assert value == 2001
    assert "mine.yaml:2:" in origin
    monkeypatch.setenv("MSCTX_MAX_CALL_DEPTH", "2002")
    msctx.reset_context()
    assert found() == (2002, "environment MSCTX_MAX_CALL_DEPTH")
    msctx.set_context(max_call_depth=2003)
    value, origin = found()
    assert value == 2003
    assert origin.startswith("set_context at test_context.py:")
    with msctx.context(max_call_depth=2004):
        value, origin = found()
        assert value == 2004
        assert origin.startswith("with-block at test_context.py:")
        with msctx.context(str(preset), runtime_num_threads=1):
            value, origin = found()
            assert value == 2001, "an inner scope's preset beats the outer scope"
            assert "mine.yaml:2:" in origin
            with msctx.context(max_call_depth=2006):
                assert found()[0] == 2006
            assert found()[0] == 2001
        assert found()[0] == 2004
    assert found()[0] == 2003
    monkeypatch.delenv("MSCTX_PRESET")
    monkeypatch.delenv("MSCTX_MAX_CALL_DEPTH")
    msctx.reset_context()
    assert found() == (1000, "default")


def test_options_beat_the_preset_beside_them() -> None:
    with msctx.context("reproducible", seed_scope=True) as ctx:
        assert torch.are_deterministic_algorithms_enabled()
        assert msctx.get_context("seed", origin=True) == (0, "preset reproducible")
        assert ctx.get("deterministic") == "ON"
    with msctx.context("reproducible", deterministic="OFF", seed=7, seed_scope=True):
        assert not torch.are_deterministic_algorithms_enabled()
        assert torch.initial_seed() == 7
    with msctx.context(preset="reproducible", seed_scope=True):
        assert torch.initial_seed() == 0


def test_two_presets_are_a_contradiction() -> None:
    with pytest.raises((OptionError, TypeError)):
        msctx.context("fast", preset="debug")
    with pytest.raises((OptionError, TypeError)):
        msctx.set_context("fast", preset="debug")


@pytest.mark.parametrize("preset", ["reproducable", "no such thing", 5, b"reproducible", ["reproducible"], "missing.yaml"])
def test_an_unknown_preset(preset: Any) -> None:
    with pytest.raises(msctx.MsctxError) as caught:
        msctx.context(preset)
    assert "missing.yaml" in str(caught.value) or "is not a preset" in str(caught.value)
    if preset == "reproducable":
        assert "did you mean 'reproducible'" in str(caught.value)


def on(device: str, ctx: Any) -> dict[str, Any]:
    rows = msctx.explain(ctx.settings, device).rows
    return {row.option: row.value for row in rows if row.device == device and not row.shadowed}


@quiet
def test_a_group_beats_the_flat_spelling_inside_one_scope() -> None:
    with msctx.context(conv_allow_tf32=True, gpu_config={"conv_allow_tf32": False}) as ctx:
        assert on("cuda", ctx)["conv_allow_tf32"] is False
        assert on("cpu", ctx)["conv_allow_tf32"] is True
        assert msctx.get_context("conv_allow_tf32") is True
        assert msctx.get_context("gpu_config.conv_allow_tf32") is False
        assert msctx.get_context("gpu_config") == {"conv_allow_tf32": False}
        with msctx.context(conv_allow_tf32=True) as inner:
            assert on("cuda", inner)["conv_allow_tf32"] is True, "the inner scope's flat spelling beats the outer scope's group"
            with msctx.context(gpu_config={"matmul_allow_tf32": True}) as third:
                found = on("cuda", third)
                assert (found["conv_allow_tf32"], found["matmul_allow_tf32"]) == (True, True), "groups merge key by key"


@quiet
def test_a_flat_setting_is_in_force_for_each_devices_group() -> None:
    with msctx.context(conv_allow_tf32=False):
        assert msctx.get_context("gpu_config.conv_allow_tf32") is False
    with msctx.context(gpu_config={"conv_allow_tf32": False}):
        with msctx.context(conv_allow_tf32=True):
            assert msctx.get_context("gpu_config.conv_allow_tf32") is True
        assert msctx.get_context("gpu_config.conv_allow_tf32") is False


def test_two_spellings_of_one_option() -> None:
    with msctx.context(deterministic="ON"):
        assert msctx.get_context("session.deterministic") == "ON"
        with msctx.context(session={"deterministic": "OFF"}):
            assert msctx.get_context("deterministic") == "OFF"
            assert not torch.are_deterministic_algorithms_enabled()
    with msctx.context(deterministic="ON", session={"deterministic": "ON"}):
        assert torch.are_deterministic_algorithms_enabled()
    with pytest.raises(OptionError, match="contradicts"):
        msctx.context(deterministic="ON", session={"deterministic": "OFF"})


def test_contradicting_variables_are_an_error(base: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSCTX_DETERMINISTIC", "ON")
    monkeypatch.setenv("MSCTX_SESSION__DETERMINISTIC", "OFF")
    with pytest.raises(OptionError, match="contradict"):
        msctx.get_context("deterministic")


def test_get_context() -> None:
    assert msctx.get_context("runtime_num_threads", origin=True) == (30, "default")
    assert msctx.get_context("seed", origin=True) == (None, "default")
    assert msctx.get_context() == {}
    assert msctx.get_context("gpu_config") == {}, "a group of which nothing is set"
    with msctx.context(runtime_num_threads=1, seed_scope=True):
        assert msctx.get_context() == {"runtime_num_threads": 1, "seed_scope": True}
        assert msctx.get_context(origin=True)["seed_scope"].origin.startswith("with-block at test_context.py:")
    with pytest.raises(OptionError, match="did you mean deterministic"):
        msctx.get_context("determinstic")


def test_writing_the_default_is_a_setting(exact_state: State) -> None:
    before = exact_state()
    with msctx.context(max_call_depth=1000):
        assert msctx.get_context("max_call_depth", origin=True).origin.startswith("with-block")
        assert exact_state() != before


# --- set_context ------------------------------------------------------------------------------------------------------


def test_set_and_reset(base: None, exact_state: State) -> None:
    before = exact_state()
    msctx.set_context(runtime_num_threads=1, deterministic="ON")
    assert threads() == 1
    msctx.set_context(deterministic="OFF", max_call_depth=3000)
    assert not torch.are_deterministic_algorithms_enabled()
    assert msctx.get_context() == {"runtime_num_threads": 1, "deterministic": "OFF", "max_call_depth": 3000}
    assert msctx.current().get("max_call_depth") == 3000
    msctx.reset_context()
    assert exact_state() == before
    assert msctx.get_context() == {}
    msctx.reset_context()


def test_the_latest_set_context_wins_whatever_its_spelling(base: None) -> None:
    msctx.set_context(deterministic="ON")
    msctx.set_context(session={"deterministic": "OFF"})
    assert not torch.are_deterministic_algorithms_enabled()
    msctx.set_context(deterministic="ON")
    assert torch.are_deterministic_algorithms_enabled()
    msctx.reset_context()
    msctx.set_context("reproducible", session={"deterministic": "OFF"})
    assert not torch.are_deterministic_algorithms_enabled(), "the preset beat the option beside it"


def test_set_context_seeds_once(base: None) -> None:
    msctx.set_context(seed=5)
    first = torch.rand(1).item(), random.random()
    msctx.set_context(runtime_num_threads=1)
    assert (torch.rand(1).item(), random.random()) != first, "a set_context about threads seeded again"
    with msctx.context(max_call_depth=500):
        assert torch.rand(1).item() != first[0], "a scope that has no seed seeded again"
    msctx.set_context(seed=5)
    assert (torch.rand(1).item(), random.random()) == first


def test_a_scope_inside_does_not_seed_again(base: None) -> None:
    with msctx.context(runtime_num_threads=1):
        msctx.set_context(seed=5)
        first = torch.rand(1).item()
        with msctx.context(max_call_depth=500):
            assert torch.rand(1).item() != first
    with msctx.context(seed=6, seed_scope=True):
        first = torch.rand(1).item()
        with msctx.context(runtime_num_threads=1):
            assert torch.rand(1).item() != first
        with msctx.context(seed=6):
            assert torch.rand(1).item() == first


def test_a_later_set_context_keeps_what_earlier_ones_need(base: None) -> None:
    msctx.set_context(max_call_depth=2000)
    limit = sys.getrecursionlimit()
    assert limit > 2000
    msctx.set_context(runtime_num_threads=1)
    assert sys.getrecursionlimit() == limit, "Python's limit fell below what max_call_depth needs"
    with msctx.context(seed_scope=True):
        assert sys.getrecursionlimit() == limit


def test_set_context_under_an_open_scope(base: None, exact_state: State) -> None:
    before = exact_state()
    with msctx.context(runtime_num_threads=1):
        with pytest.warns(MsctxWarning, match=r"stays in force until it closes.*torch\.num_threads"):
            msctx.set_context(runtime_num_threads=2, max_call_depth=3000)
        assert threads() == 1
        assert msctx.get_context("runtime_num_threads") == 1
        assert apply.SWITCHES["torch.nn.max_call_depth"].read() == 3000, "the rest holds at once"
        assert msctx.get_context("max_call_depth") == 3000
        assert msctx.get_context() == {"runtime_num_threads": 1, "max_call_depth": 3000}
        with msctx.context(seed_scope=True):
            assert threads() == 1
            assert msctx.get_context("max_call_depth") == 3000
    assert threads() == 2
    assert msctx.get_context("runtime_num_threads") == 2
    msctx.reset_context()
    assert exact_state() == before


def test_set_context_of_another_option_does_not_warn(base: None) -> None:
    with msctx.context(runtime_num_threads=1), warnings.catch_warnings():
        warnings.simplefilter("error")
        msctx.set_context(max_call_depth=3000)


def test_reset_under_an_open_scope(base: None, exact_state: State) -> None:
    before = exact_state()
    msctx.set_context(runtime_num_threads=1, deterministic="ON")
    with msctx.context(runtime_num_threads=2):
        msctx.reset_context()
        assert threads() == 2
        assert not torch.are_deterministic_algorithms_enabled()
        assert msctx.get_context() == {"runtime_num_threads": 2}
    assert exact_state() == before


def test_a_refused_set_context_changes_nothing(base: None, exact_state: State) -> None:
    before = exact_state()
    with pytest.raises(OptionError):
        msctx.set_context(runtime_num_threads=1, deterministic="maybe")
    with pytest.raises(StrictError):
        msctx.set_context(runtime_num_threads=1, mode=0, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(MsctxWarning):
            msctx.set_context(runtime_num_threads=1, mode=0)
    assert exact_state() == before
    assert msctx.get_context() == {}


def test_ctrl_c_in_set_context_leaves_values_and_switches_agreed(base: None, monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    def write(value: int) -> None:
        torch.set_num_threads(value)
        signal.raise_signal(signal.SIGINT)

    found = threads()
    switch = dataclasses.replace(
        apply.SWITCHES["torch.num_threads"], write=write, save=torch.get_num_threads, load=torch.set_num_threads
    )
    with monkeypatch.context() as patch:
        patch.setattr(apply, "SWITCHES", {**apply.SWITCHES, "torch.num_threads": switch})
        with pytest.raises(KeyboardInterrupt):
            msctx.set_context(runtime_num_threads=1)
    said = msctx.get_context("runtime_num_threads", origin=True)
    assert threads() == (found if said.origin == "default" else said.value)


@pytest.mark.parametrize("successor", [False, True], ids=["no successor", "its number belongs to another thread now"])
def test_set_context_in_a_thread_that_has_ended(base: None, exact_state: State, successor: bool) -> None:
    """What belongs to the process can be reset by anybody; what belonged to that thread went with it."""
    before = exact_state()
    setter = threading.Thread(target=lambda: msctx.set_context(pynative_synchronize=True, runtime_num_threads=1))
    setter.start()
    setter.join()
    stop = threading.Event()
    others = [threading.Thread(target=stop.wait, args=(30,)) for _ in range(3 * successor)]
    for other in others:
        other.start()
    try:
        if successor and setter.ident not in {other.ident for other in others}:
            pytest.skip("this system does not give a thread's number away so soon")
        msctx.reset_context()
        left = msctx.diff(before, exact_state())
    finally:
        stop.set()
        for hold in {id(h): h for holds in apply._ledger.values() for h in holds}.values():
            for record in hold.records.values():
                record.put_back()
        apply._ledger.clear()
        base_module.BASE.__init__()  # whatever came of it: the next test starts afresh
    assert left == {}


# --- leaving in the wrong order, or from elsewhere ------------------------------------------------------------------------


def test_out_of_order(exact_state: State) -> None:
    before = exact_state()
    outer, inner = msctx.context(runtime_num_threads=1), msctx.context(deterministic="ON")
    outer.__enter__()
    inner.__enter__()
    inside = exact_state()
    with pytest.raises(ScopeError, match=r"was left before the .* inside it"):
        outer.__exit__(None, None, None)
    assert exact_state() == inside, "both stay in force"
    with pytest.raises(ScopeError, match="not open"):
        outer.__exit__(None, None, None)
    assert msctx.current() is inner
    inner.__exit__(None, None, None)
    assert exact_state() == before, "they close together"
    with pytest.raises(ScopeError, match="not open"):
        inner.__exit__(None, None, None)
    with msctx.context(runtime_num_threads=1):
        assert threads() == 1
    assert exact_state() == before


def test_never_entered() -> None:
    with pytest.raises(ScopeError, match="not open in this thread"):
        msctx.context(seed=0).__exit__(None, None, None)


def test_exit_from_another_thread(exact_state: State) -> None:
    before = exact_state()
    with msctx.context(runtime_num_threads=1) as ctx:
        inside = exact_state()
        with pytest.raises(ScopeError, match="left by the thread that entered it"):
            in_thread(lambda: ctx.__exit__(None, None, None))
        assert exact_state() == inside
    assert exact_state() == before


def test_restore_error_still_closes_the_scope(exact_state: State) -> None:
    before = exact_state()
    with pytest.raises(RestoreError), msctx.context(strict=True, runtime_num_threads=1):
        torch.set_num_threads(2)
    assert exact_state() == before
    assert context_module._stack.scopes == []


# --- threads ----------------------------------------------------------------------------------------------------------


def test_overlapping_scopes_in_two_threads(exact_state: State) -> None:
    before = exact_state()
    with Elsewhere() as other:
        theirs = msctx.context(runtime_num_threads=1)
        other.do(theirs.__enter__)
        inside = exact_state()
        with pytest.raises(ScopeError, match=r"torch\.num_threads belongs to the whole process.*msctx\.current\(\)\.bind"):
            msctx.context(runtime_num_threads=1).__enter__()
        with pytest.raises(ScopeError, match=r"torch\.num_threads"):
            msctx.context(deterministic="ON", runtime_num_threads=2).__enter__()
        assert exact_state() == inside
        assert context_module._stack.scopes == []
        with msctx.context(max_call_depth=3000, deterministic="ON"):  # these do not overlap
            assert torch.are_deterministic_algorithms_enabled()
        assert exact_state() == inside
        other.do(theirs.__exit__)
        with msctx.context(runtime_num_threads=1):
            assert threads() == 1
    assert exact_state() == before


def test_disjoint_scopes_close_in_any_order(exact_state: State) -> None:
    before = exact_state()
    with Elsewhere() as other:
        theirs, mine = msctx.context(runtime_num_threads=1), msctx.context(deterministic="ON")
        other.do(theirs.__enter__)
        with mine:
            other.do(theirs.__exit__)
            assert torch.are_deterministic_algorithms_enabled()
    assert exact_state() == before


def test_a_thread_born_inside_a_scope_restores_what_later_threads_get() -> None:
    """It keeps the scope's number of threads as its own; what it puts back must not become everybody's."""
    found = threads()
    with Elsewhere() as other:
        with msctx.context(runtime_num_threads=found + 1):
            assert other.do(threads) == found + 1
        assert in_thread(threads) == found
        other.do(msctx.context(runtime_num_threads=found + 2)(threads))
        assert in_thread(threads) == found
        assert threads() == found


def test_many_threads_at_once(exact_state: State) -> None:
    """Whatever overlaps is refused; in the end all is as it was."""
    before = exact_state()
    options: list[dict[str, Any]] = [
        {"deterministic": "ON"},
        {"deterministic": "OFF", "max_call_depth": 77},
        {"max_call_depth": 5000},
        {"pynative_synchronize": True},
        {"device_target": "CPU", "default_device": True},
        {"seed_scope": True},
    ]
    counts = {"entered": 0, "refused": 0}

    def work(number: int) -> None:
        chance = random.Random(number)
        for _ in range(60):
            try:
                with msctx.context(**chance.choice(options)), msctx.context(**chance.choice(options)):
                    counts["entered"] += 1
                    if chance.random() < 0.2:
                        raise OwnError
            except ScopeError:
                counts["refused"] += 1
            except OwnError:
                pass
            assert context_module._stack.scopes == []

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(work, number) for number in range(4)]:
                done.result(60)
    finally:
        sys.setswitchinterval(interval)
    assert counts["entered"] > 20
    assert counts["refused"] > 20
    assert exact_state() == before


def test_each_thread_has_its_own_default_device() -> None:
    options = {"device_target": "CPU", "default_device": True}
    read = apply.SWITCHES["torch.default_device"].read
    with Elsewhere() as other, msctx.context(**options):
        ctx = msctx.context(**options)
        assert other.do(read) is None
        other.do(ctx.__enter__)
        assert other.do(read) == "cpu"
        other.do(ctx.__exit__)
        assert other.do(read) is None
        assert read() == "cpu"
    assert read() is None


def test_set_context_sees_the_scopes_of_other_threads(base: None) -> None:
    found = threads()
    with Elsewhere() as other:
        theirs = msctx.context(runtime_num_threads=found + 1)
        other.do(theirs.__enter__)
        with pytest.warns(MsctxWarning, match="stays in force"):
            msctx.set_context(runtime_num_threads=found + 2)
        other.do(theirs.__exit__)
    assert in_thread(threads) == found + 2


# --- bind -------------------------------------------------------------------------------------------------------------


def multithreading() -> bool:
    """A switch that each thread has for itself; pynative_synchronize turns it off."""
    return _C._is_multithreading_enabled()


def test_bind_carries_a_context_into_a_thread(exact_state: State) -> None:
    before = exact_state()
    with msctx.context(runtime_num_threads=1, pynative_synchronize=True) as ctx:
        bound = msctx.current().bind(lambda: (threads(), multithreading(), msctx.get_context("runtime_num_threads")))
        with Elsewhere() as other:
            assert other.do(multithreading), "torch shares it with new threads: the test proves nothing"
            assert other.do(bound) == (1, False, 1)
            assert other.do(multithreading), "not put back in the thread"
            with pytest.raises(OwnError):
                other.do(ctx.bind(_raise_own_error))
            assert other.do(multithreading)
            assert other.do(lambda: context_module._stack.scopes) == []
        assert bound() == (1, False, 1), "in the thread where it was bound"
    assert exact_state() == before


def _raise_own_error() -> None:
    raise OwnError


def test_bind_sets_the_number_of_threads_in_a_thread_that_is_older() -> None:
    """A thread that has already computed keeps its own number of OpenMP threads."""
    found = threads()
    with Elsewhere() as other:
        assert other.do(lambda: (torch.ones(64, 64) @ torch.ones(64, 64)).shape[0] and threads()) == found
        with msctx.context(runtime_num_threads=found + 1):
            assert other.do(msctx.current().bind(threads)) == found + 1
            assert in_thread(threads) == found + 1, "new threads still get the context's number"
            assert threads() == found + 1
        assert other.do(threads) == found
    assert threads() == found


def test_bound_functions_may_nest_scopes_that_do_not_clash(exact_state: State) -> None:
    before = exact_state()

    def work() -> int:
        with msctx.context(max_call_depth=3000):
            assert msctx.get_context() == {"runtime_num_threads": 1, "max_call_depth": 3000}
            return threads()

    def clash() -> None:
        with msctx.context(runtime_num_threads=2):
            pass

    with msctx.context(runtime_num_threads=1) as ctx:
        assert in_thread(ctx.bind(work)) == 1
        with pytest.raises(ScopeError):
            in_thread(ctx.bind(clash))
    assert exact_state() == before


def test_bind_after_the_scope_has_closed_enters_it_afresh(exact_state: State) -> None:
    before = exact_state()
    with msctx.context(runtime_num_threads=1), msctx.context(pynative_synchronize=True):
        bound = msctx.current().bind(lambda: (threads(), multithreading()))
    assert (threads() == 1, multithreading()) == (False, True)
    assert in_thread(bound) == (1, False)
    assert bound() == (1, False)
    assert exact_state() == before


def test_bind_of_a_context_that_is_not_open(exact_state: State) -> None:
    before = exact_state()
    bound = msctx.context(runtime_num_threads=1).bind(threads)
    assert bound() == 1
    assert in_thread(bound) == 1
    assert exact_state() == before


def test_leaving_while_a_bound_function_runs_is_told(exact_state: State) -> None:
    before = exact_state()
    started, go_on = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        go_on.wait(10)

    with Elsewhere() as other:

        def leave_early() -> Any:
            with msctx.context(pynative_synchronize=True) as ctx:
                running = other._pool.submit(ctx.bind(work))
                assert started.wait(10)
            return running

        with pytest.warns(MsctxWarning, match=r"was left while 1 function\(s\) bound to it still run"):
            running = leave_early()
        assert exact_state() == before
        go_on.set()
        running.result(10)
        assert other.do(multithreading)
    assert exact_state() == before


def test_bind_outside_every_with_block_carries_set_context(base: None) -> None:
    msctx.set_context(pynative_synchronize=True, runtime_num_threads=1)
    assert in_thread(msctx.current().bind(lambda: (multithreading(), threads()))) == (False, 1)
    assert in_thread(multithreading)


def test_bound_functions_can_be_pickled() -> None:
    with msctx.context("debug", runtime_num_threads=1, max_device_memory="4GB", seed_scope=True) as ctx:
        bound = pickle.loads(pickle.dumps(ctx.bind(msctx.get_context)))
        inside = msctx.get_context()
        origin = msctx.get_context("seed", origin=True)
    assert bound() == inside
    assert bound("seed", origin=True) == origin


test_bound_functions_can_be_pickled = quiet(test_bound_functions_can_be_pickled)


@pytest.fixture(scope="module")
def spawned() -> Iterator[ProcessPoolExecutor]:
    """A worker process that shares nothing with this one."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


def test_bind_into_a_spawned_process(spawned: ProcessPoolExecutor) -> None:
    plain = spawned.submit(msctx.state).result(120)
    assert not plain["torch.deterministic"]
    with msctx.context(deterministic="ON"), msctx.context(runtime_num_threads=1, pynative_synchronize=True) as ctx:
        there = spawned.submit(ctx.bind(msctx.state)).result(120)
        here, names = msctx.state(), list(ctx.plan.assignments)
    assert len(names) > 5
    for name in names:
        assert there[name] == here[name], name
    assert there["torch.deterministic"]
    assert there["torch.num_threads"] == 1
    assert not there["torch.autograd.multithreading"]
    assert spawned.submit(msctx.state).result(120) == plain, "the worker was not put back"


def test_bind_into_a_spawned_process_carries_set_context(base: None, spawned: ProcessPoolExecutor) -> None:
    """Also what `msctx run` lays below a program: it is in force wherever the program's workers are."""
    msctx.set_context(deterministic="ON")
    there = spawned.submit(msctx.current().bind(msctx.state)).result(120)
    assert there["torch.deterministic"], "outside a with-block"
    with msctx.context(runtime_num_threads=1) as ctx:
        there = spawned.submit(ctx.bind(msctx.state)).result(120)
    assert there["torch.num_threads"] == 1
    assert there["torch.deterministic"], "below a with-block"


# --- fork -------------------------------------------------------------------------------------------------------------

FORK = """
import os, signal, sys, threading, torch, msctx
from msctx import apply
from msctx import base as base_module
context_module = sys.modules["msctx.context"]
found = torch.get_num_threads()

def child(function):
    "Run in a forked child; an error or ten seconds end it."
    sys.stdout.flush()
    if (pid := os.fork()) == 0:
        signal.alarm(10)
        try:
            function()
            code = 0
        except BaseException:
            import traceback
            traceback.print_exc()
            code = 1
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code != -signal.SIGALRM, "the child hangs"
    assert code == 0, code
"""


def test_a_forked_child_can_enter_contexts(passes: Passes) -> None:
    passes(
        FORK
        + _dedent("""
        def enter():
            before = msctx.state()
            with msctx.context(deterministic="ON", max_call_depth=2000) as ctx:
                assert torch.are_deterministic_algorithms_enabled()
                assert msctx.current() is ctx
            assert msctx.state() == before
            msctx.set_context(max_call_depth=50)
            msctx.reset_context()
            assert msctx.state() == before

        child(enter)
        with msctx.context(deterministic="ON", runtime_num_threads=1) as ctx:  # open in the thread that forks
            def inherit():
                assert msctx.current() is ctx
                enter()
                ctx.__exit__(None, None, None)
                assert not torch.are_deterministic_algorithms_enabled()
            child(inherit)
            assert torch.are_deterministic_algorithms_enabled()

        entered, leave = threading.Event(), threading.Event()
        def hold():
            with msctx.context(max_call_depth=77):
                entered.set()
                leave.wait()
        thread = threading.Thread(target=hold, daemon=True)
        thread.start()
        assert entered.wait(10)
        def clash():
            try:
                with msctx.context(max_call_depth=78):
                    raise SystemExit("the other thread's scope was overwritten")
            except msctx.ScopeError:
                pass
        clash()
        def take_over():  # the thread that holds the scope does not exist here
            with msctx.context(max_call_depth=78):
                assert apply.SWITCHES["torch.nn.max_call_depth"].read() == 78
        child(take_over)
        leave.set()
        thread.join()
    """)
    )


@pytest.mark.parametrize("lock", ["apply._lock", "base_module.BASE.lock"])
def test_a_fork_while_another_thread_is_inside_msctx(passes: Passes, lock: str) -> None:
    passes(
        FORK
        + _dedent(f"""
        msctx.get_context("seed")
        locked, release = threading.Event(), threading.Event()
        def hold():
            with {lock}:
                locked.set()
                release.wait()
        thread = threading.Thread(target=hold, daemon=True)
        thread.start()
        assert locked.wait(10)
        def work():
            with msctx.context(max_call_depth=78):
                pass
            msctx.set_context(max_call_depth=79)
            msctx.reset_context()
        child(work)
        release.set()
        thread.join()
    """)
    )


def test_threads_are_not_raised_in_a_forked_child(passes: Passes) -> None:
    """OpenMP's pool does not survive a fork: torch gives a worker one thread, and computing with more would hang."""
    passes(
        FORK
        + _dedent("""
        import warnings
        (torch.ones(4_000_000) + 1).sum()  # the parent has used its pool
        ctx = msctx.context(runtime_num_threads=2)
        def work():
            torch.set_num_threads(1)  # as torch's DataLoader does
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                with ctx:
                    assert (torch.ones(4_000_000) + 1).sum() == 8_000_000
            assert told, "runtime_num_threads=2 was dropped in silence"
        child(work)
    """)
    )


def _dedent(code: str) -> str:
    import textwrap

    return textwrap.dedent(code)


# --- compiled code ----------------------------------------------------------------------------------------------------


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch.compiler.reset()
    return torch.compile(function, backend="eager", **options)


def test_a_with_block_inside_compiled_code(plain_state: State) -> None:
    def work(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        with msctx.context(deterministic="ON", runtime_num_threads=1):
            y = y * 2 if torch.are_deterministic_algorithms_enabled() else y * 100
        return y if torch.are_deterministic_algorithms_enabled() else y - 1

    call = compiled(work)
    before = plain_state()
    for _ in range(3):
        assert call(torch.ones(2)).tolist() == [3, 3]
        assert plain_state() == before
    assert context_module._stack.scopes == []


def test_an_exception_in_a_with_block_inside_compiled_code(plain_state: State) -> None:
    def work(x: torch.Tensor) -> torch.Tensor:
        with msctx.context(deterministic="ON"):
            if x.sum() > 0:
                raise OwnError
            return x

    call = compiled(work)
    before = plain_state()
    for _ in range(2):
        with pytest.raises(OwnError):
            call(torch.ones(2))
        assert plain_state() == before
        call(-torch.ones(2))
        assert plain_state() == before


def test_set_context_and_decorators_inside_compiled_code(base: None, plain_state: State) -> None:
    @msctx.context(deterministic="ON")
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x * (2 if torch.are_deterministic_algorithms_enabled() else 100)

    def work(x: torch.Tensor) -> torch.Tensor:
        msctx.set_context(runtime_num_threads=1)
        y = inner(x) * torch.get_num_threads()
        msctx.reset_context()
        return y

    call = compiled(work)
    before = plain_state()
    for _ in range(2):
        assert call(torch.ones(1)).tolist() == [2]
        assert plain_state() == before


def test_a_compiled_function_inside_a_with_block() -> None:
    call = compiled(lambda x: x * (2 if torch.are_deterministic_algorithms_enabled() else 3), fullgraph=True)
    for _ in range(2):
        with msctx.context(deterministic="ON"):
            assert call(torch.ones(1)).tolist() == [2]
        assert call(torch.ones(1)).tolist() == [3]


def _enter(x: torch.Tensor) -> torch.Tensor:
    with msctx.context(deterministic="ON"):
        return x * 2


def _set(x: torch.Tensor) -> torch.Tensor:
    msctx.set_context(runtime_num_threads=1)
    return x * 2


def _reset(x: torch.Tensor) -> torch.Tensor:
    msctx.reset_context()
    return x * 2


@pytest.mark.parametrize("work", [_enter, _set, _reset])
def test_fullgraph_says_why_it_cannot(plain_state: State, work: Callable[..., Any]) -> None:
    call = compiled(work, fullgraph=True)
    before = plain_state()
    with pytest.raises(
        torch._dynamo.exc.Unsupported, match="a msctx context cannot be entered or changed inside compiled code"
    ):
        call(torch.ones(1))
    assert plain_state() == before


def test_fullgraph_with_a_context_made_outside(plain_state: State) -> None:
    ctx = msctx.context(deterministic="ON")

    def work(x: torch.Tensor) -> torch.Tensor:
        with ctx:
            return x * 2

    call = compiled(work, fullgraph=True)
    before = plain_state()
    for function in (call, compiled(ctx(lambda x: x * 2), fullgraph=True)):
        with pytest.raises(torch._dynamo.exc.Unsupported, match="Context"):
            function(torch.ones(1))
        assert plain_state() == before


# --- seed -------------------------------------------------------------------------------------------------------------


def draw() -> tuple[Any, ...]:
    return (
        random.random(),
        random.gauss(0, 1),
        numpy.random.rand(),
        numpy.random.randn(),
        torch.rand(3).tolist(),
        torch.randn(1).item(),
    )


def test_seed_seeds_every_generator() -> None:
    with msctx.context(seed=3):
        first = draw()
        assert draw() != first
    with msctx.context(seed=3):
        assert draw() == first
    with msctx.context(seed=4):
        assert draw()[0] != first[0]
        assert torch.initial_seed() == 4


def test_seed_is_not_taken_back() -> None:
    with msctx.context(seed=3):
        pass
    after = draw()
    with msctx.context(seed=3):
        assert draw() == after


@pytest.mark.parametrize("error", [None, OwnError])
def test_seed_scope_puts_the_generators_back(error: type[Exception] | None) -> None:
    random.seed(1)
    numpy.random.seed(1)
    torch.manual_seed(1)
    random.gauss(0, 1)  # one more number is kept for the next call
    numpy.random.randn()
    states = random.getstate(), torch.get_rng_state().tolist()
    with ExitStack() as stack:
        if error:
            stack.enter_context(pytest.raises(error))
        with msctx.context(seed=3, seed_scope=True):
            inside = draw()
            if error:
                raise error
    assert (random.getstate(), torch.get_rng_state().tolist()) == states
    outside = draw()
    with msctx.context(seed_scope=True):
        draw()
        with msctx.context(seed=3):
            assert draw() == inside
    random.seed(1)
    numpy.random.seed(1)
    torch.manual_seed(1)
    random.gauss(0, 1)
    numpy.random.randn()
    assert draw() == outside


class Draws(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return index, random.random(), float(numpy.random.rand()), torch.rand(1).item()


def test_workers_of_a_data_loader_draw_the_same_in_each_run() -> None:
    def run(seed: int) -> list[Any]:
        with msctx.context(seed=seed, seed_scope=True):
            loader = torch.utils.data.DataLoader(
                Draws(), batch_size=None, shuffle=True, num_workers=2, multiprocessing_context="fork"
            )
            return [tuple(row) for row in loader]

    first = run(0)
    assert run(0) == first
    assert {row[1:] for row in run(1)}.isdisjoint(row[1:] for row in first)
    assert len({row[1] for row in first}) == len({row[2] for row in first}) == 6


# --- max_call_depth ---------------------------------------------------------------------------------------------------


class Nest(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module | None, error: type[BaseException] | None = None) -> None:
        super().__init__()
        self.inner, self.error = inner, error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.error:
            raise self.error
        return x + 1 if self.inner is None else self.inner(x)


def nest(depth: int, error: type[BaseException] | None = None) -> torch.nn.Module:
    net = Nest(None, error)
    for _ in range(depth - 1):
        net = Nest(net)
    return net


def test_max_call_depth() -> None:
    net, x = nest(100), torch.ones(1)
    for depth in (80, 99):
        with (
            msctx.context(max_call_depth=depth),
            pytest.raises(RuntimeError, match=f"Exceed function call depth limit {depth}"),
        ):
            net(x)
    for depth in (100, 2000):
        with msctx.context(max_call_depth=depth):
            assert net(x) == net(x) == 2
    with msctx.context(max_call_depth=80):
        for _ in range(5):
            assert nest(80)(x) == 2
    assert net(x) == 2


@pytest.mark.skipif(sys.version_info[:2] == (3, 12), reason="Python 3.12 has a fixed limit for calls through C")
def test_max_call_depth_reaches_beyond_pythons_limit() -> None:
    net, x = nest(400), torch.ones(1)
    with pytest.raises(RecursionError):
        net(x)
    with msctx.context(max_call_depth=2000):
        assert net(x) == 2


@pytest.mark.parametrize("error", [OwnError, KeyboardInterrupt, SystemExit])
def test_max_call_depth_counts_right_after_an_exception(error: type[BaseException]) -> None:
    def work() -> None:
        for _ in range(3):
            with msctx.context(max_call_depth=10):
                for _ in range(4):
                    with pytest.raises(error):
                        nest(9, error)(torch.ones(1))
                assert nest(10)(torch.ones(1)) == 2

    in_thread(work)  # the count is each thread's own: a wrong one stays out of the other tests


def test_ctrl_c_under_max_call_depth_keeps_nothing_alive() -> None:
    """Torch runs no hook for a call that Ctrl-C ended; whatever still counts it must not hold on to its tensors."""
    x = torch.ones(8)
    alive = weakref.ref(x)
    with msctx.context(max_call_depth=10), suppress(KeyboardInterrupt):
        nest(3, KeyboardInterrupt)(x)
    del x
    gc.collect()
    assert alive() is None


def test_max_call_depth_counts_each_thread_alone() -> None:
    barrier = threading.Barrier(2)

    class Meet(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            barrier.wait(10)
            return x + 1

    net = Nest(Nest(Meet()))
    with msctx.context(max_call_depth=3), ThreadPoolExecutor(2) as pool:
        assert [result.item() for result in pool.map(net, [torch.ones(1)] * 2)] == [2, 2]


# --- pynative_synchronize, determinism, devices -----------------------------------------------------------------------


def broken_backward() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x.exp()  # the line of the forward
    y.add_(1)
    y.sum().backward()


def test_pynative_synchronize_names_the_line_of_the_forward() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            broken_backward()
        assert not any("y = x.exp()" in str(w.message) for w in told), "torch names it anyway"
        with msctx.context(pynative_synchronize=True), pytest.raises(RuntimeError, match="modified by an inplace operation"):
            broken_backward()
    text = "\n".join(str(w.message) for w in told)
    assert "y = x.exp()  # the line of the forward" in text
    assert "test_context.py" in text


def test_pynative_synchronize_does_not_forbid_nan() -> None:
    def make_nan() -> torch.Tensor:
        x = torch.zeros(1, requires_grad=True)
        (x.sqrt() * 0).sum().backward()
        assert x.grad is not None
        return x.grad

    with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="nan"):
        make_nan()
    with msctx.context(pynative_synchronize=True):
        assert make_nan().isnan().all()
    with torch.autograd.detect_anomaly():
        with msctx.context(pynative_synchronize=True):
            make_nan()
        with pytest.raises(RuntimeError, match="nan"):
            make_nan()


test_pynative_synchronize_does_not_forbid_nan = pytest.mark.filterwarnings("ignore:Anomaly Detection")(
    pytest.mark.filterwarnings("ignore:Error detected in")(test_pynative_synchronize_does_not_forbid_nan)
)


def test_deterministic() -> None:
    def scatter() -> torch.Tensor:
        return torch.zeros(3).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]), accumulate=False)

    scatter()
    with msctx.context(deterministic="ON"):
        with pytest.raises(RuntimeError, match="put_"):
            scatter()
        with msctx.context(deterministic="OFF"):
            scatter()
        with msctx.context(deterministic_warn_only=True), pytest.warns(UserWarning, match="put_"):
            scatter()
        with pytest.raises(RuntimeError, match="put_"):
            scatter()
    scatter()


def test_inductors_flag_in_every_thread() -> None:
    from torch._inductor import config

    def there() -> bool:
        return config.deterministic

    assert (config.deterministic, in_thread(there)) == (False, False)
    with msctx.context(deterministic="ON"):
        assert (config.deterministic, in_thread(there)) == (True, True)
        with msctx.context(deterministic="OFF"):
            assert (config.deterministic, in_thread(there)) == (False, False)
        assert (config.deterministic, in_thread(there)) == (True, True)
    assert (config.deterministic, in_thread(there)) == (False, False)


@pytest.mark.parametrize("variable", ["", "0", "1"])
def test_inductor_loaded_inside_the_scope(passes: Passes, variable: str) -> None:
    passes(
        f"""
        import os, sys, threading, torch, msctx
        variable = {variable!r} or None
        before = msctx.state()
        def in_thread():
            found = []
            thread = threading.Thread(target=lambda: found.append(sys.modules["torch._inductor.config"].deterministic))
            thread.start()
            thread.join()
            return found[0]
        with msctx.context(deterministic="ON"):
            assert "torch._inductor.config" not in sys.modules, "msctx loaded inductor"
            from torch._inductor import config
            assert config.deterministic and in_thread()
            with msctx.context(deterministic="OFF"):
                assert not config.deterministic and not in_thread()
        assert config.deterministic == in_thread() == (variable == "1")
        assert os.environ.get("TORCHINDUCTOR_DETERMINISTIC") == variable
        assert msctx.state()["torch.inductor.deterministic"] == before["torch.inductor.deterministic"]
        """,
        env={"TORCHINDUCTOR_DETERMINISTIC": variable} if variable else {},
    )


def test_default_device() -> None:
    with msctx.context(device_target="CPU") as ctx:
        assert ctx.device == torch.device("cpu")
        assert apply.SWITCHES["torch.default_device"].read() is None, "installed without having been asked for"
    with torch.device("meta"):
        assert torch.empty(1).device.type == "meta"
        with msctx.context(device_target="CPU", default_device=True) as ctx:
            assert torch.empty(1).device == ctx.device == torch.device("cpu")
            with torch.device("meta"):
                assert torch.empty(1).device.type == "meta"
            assert torch.empty(1).device.type == "cpu"
        assert torch.empty(1).device.type == "meta"
    assert torch.empty(1).device.type == "cpu"
    torch.set_default_device("meta")
    try:
        with msctx.context(device_target="CPU", default_device=True):
            assert torch.empty(1).device.type == "cpu"
        assert torch.empty(1).device.type == "meta"
    finally:
        torch.set_default_device(None)


def test_a_target_that_is_not_here(base: None, exact_state: State) -> None:
    target = next(word for word, device in (("Ascend", "ascend"), ("GPU", "cuda")) if device not in devices.here())
    before = exact_state()
    ctx = msctx.context(device_target=target, runtime_num_threads=1)  # planning is fine
    assert ctx.plan.missing
    assert ctx.plan.target == target
    for enter in (ctx.__enter__, lambda: msctx.set_context(device_target=target, runtime_num_threads=1)):
        with pytest.raises(DeviceError, match=rf"device_target='{target}'.*found: .*CPU"):
            enter()
        assert exact_state() == before
        assert msctx.get_context() == {}
    assert context_module._stack.scopes == []


# --- what is not carried out ------------------------------------------------------------------------------------------

FAILING: list[Any] = [
    pytest.param({"mode": 0}, r"mode=.*not_built", id="not_built"),
    pytest.param({"enable_dump": True}, r"enable_dump=True.*inert", id="inert"),
    pytest.param(
        {"gpu_config": {"conv_allow_tf32": False}}, r"gpu_config\.conv_allow_tf32.*refused: no CUDA device", id="refused",
        marks=without_cuda,
    ),
    pytest.param({"conv_allow_tf32": False}, r"conv_allow_tf32.*not_built", id="flat", marks=without_cuda),
]  # fmt: skip


@pytest.mark.parametrize(("options", "text"), FAILING)
def test_one_warning_for_each_option_that_is_not_carried_out(options: dict[str, Any], text: str) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            with msctx.context(runtime_num_threads=1, **options):
                assert threads() == 1
                with msctx.context(max_call_depth=50):
                    pass
    assert [w.category for w in told] == [MsctxWarning]
    assert [w.filename for w in told] == [__file__], "the warning does not point at the user's line"
    assert re.search(text, str(told[0].message))


@pytest.mark.parametrize(("options", "text"), FAILING)
def test_strict_refuses_before_anything_changes(base: None, exact_state: State, options: dict[str, Any], text: str) -> None:
    before = exact_state()
    generators = torch.get_rng_state().tolist()
    ctx = msctx.context(strict=True, runtime_num_threads=1, seed=5, **options)
    with pytest.raises(StrictError, match=text):
        ctx.__enter__()
    with pytest.raises(StrictError, match=text):
        msctx.set_context(strict=True, runtime_num_threads=1, seed=5, **options)
    assert exact_state() == before
    assert torch.get_rng_state().tolist() == generators
    assert context_module._stack.scopes == []
    assert msctx.get_context() == {}
    with pytest.raises(StrictError, match=text), msctx.context(strict=True), msctx.context(**options):
        pytest.fail("strict of the outer scope was forgotten")


def test_strict_names_everything_at_once() -> None:
    with pytest.raises(StrictError) as caught:
        msctx.context(strict=True, mode=0, enable_dump=True, runtime_num_threads=1).__enter__()
    assert "mode=0" in str(caught.value)
    assert "enable_dump=True" in str(caught.value)
    assert "runtime_num_threads" not in str(caught.value)


def test_a_warning_turned_into_an_error_leaves_nothing_behind(exact_state: State) -> None:
    before = exact_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(MsctxWarning):
            msctx.context(mode=0, runtime_num_threads=1).__enter__()
    assert exact_state() == before
    assert context_module._stack.scopes == []


def test_all_problems_at_once(exact_state: State) -> None:
    before = exact_state()
    with pytest.raises(OptionError) as caught:
        msctx.context(
            determinstic="ON", runtime_num_threads=-1, seed=1.5, gpu_config={"conv_alow_tf32": True}, deterministic="on"
        )
    assert len(caught.value.problems) == 5
    text = str(caught.value)
    for part in ("did you mean deterministic?", "-1 is out of range", "1.5 is not a whole number", "conv_allow_tf32", "'ON'"):
        assert part in text, text
    assert "5 problems; nothing was changed" in text
    assert exact_state() == before


@pytest.mark.parametrize(
    "options",
    [{"max_call_depth": 10**9}, {"max_call_depth": 10**30}, {"runtime_num_threads": 2**31}, {"runtime_num_threads": 10**30}],
    ids=str,
)
def test_numbers_that_no_machine_takes(base: None, exact_state: State, options: dict[str, int]) -> None:
    """Refused while checking, or by the switch; never by an error from below."""
    before = exact_state()
    try:
        with msctx.context(deterministic="ON", **options):
            pass
    except msctx.MsctxError:
        pass
    assert exact_state() == before


def test_what_came_too_late_is_refused_in_the_plan(passes: Passes) -> None:
    passes("""
        import warnings, torch, msctx
        msctx.set_context(inter_op_parallel_num=3)
        with warnings.catch_warnings(record=True) as told, msctx.context(inter_op_parallel_num=5) as ctx:
            warnings.simplefilter("always")
            (row,) = [r for r in ctx.plan.rows if r.option == "inter_op_parallel_num"]
            assert (row.status, dict(row.assignments)) == ("refused", {}), row
            assert "can only be set before" in row.reason
        assert torch.get_num_interop_threads() == 3
    """)


def test_one_warning_per_option_and_reason_whatever_the_value() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with msctx.context(conv_allow_tf32=False), msctx.context(conv_allow_tf32=True):
            pass
    assert len(told) == 1


def test_a_function_bound_to_the_base_follows_no_longer_when_the_base_has_changed(base: None) -> None:
    msctx.set_context(deterministic="ON")
    bound = msctx.current().bind(lambda: (torch.are_deterministic_algorithms_enabled(), msctx.get_context("deterministic")))
    assert bound() == (True, "ON")
    msctx.reset_context()
    assert bound() == (True, "ON"), "what get_context says must be so"
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_scope_that_a_dead_thread_left_open_blocks_nobody(exact_state: State) -> None:
    before = exact_state()
    thread = threading.Thread(target=msctx.context(max_call_depth=77).__enter__)
    thread.start()
    thread.join()
    try:
        with msctx.context(max_call_depth=99):
            assert msctx.get_context("max_call_depth") == 99
    finally:
        for hold in {id(h): h for holds in apply._ledger.values() for h in holds}.values():
            apply.undo(hold, quiet=True)
    assert exact_state() == before

"""For any input: scopes nested at random restore the exact state at each level; garbage is refused and changes nothing."""

import json
import math
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from samples import values
from torch import _C

import msctx
from msctx import apply
from msctx.errors import DeviceError, MsctxWarning, OptionError, StrictError, SwitchError
from msctx.options import OPTIONS
from msctx.options.layers import presets
from msctx.switches import SWITCHES, Switch

State = Callable[[], dict[str, Any]]
Example = Callable[[], AbstractContextManager[None]]
common = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]}
pytestmark = [
    pytest.mark.usefixtures("torch_as_found"),
    pytest.mark.filterwarnings("ignore::msctx.errors.MsctxWarning"),
    pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled"),
]


def generators() -> tuple[Any, ...]:
    kind, keys, *rest = numpy.random.get_state()
    return random.getstate(), (kind, keys.tolist(), *rest), torch.get_rng_state().tolist()


# --- programs: scopes, changes by the user and exceptions, nested at random ------------------------------------------------


class Failure(Exception):
    """Raised by a program; some block above may catch it."""


class Stop(BaseException):
    """The same, of the kind that `except Exception` lets through, as KeyboardInterrupt."""


@dataclass(frozen=True)
class Block:
    """Enter something, run the blocks inside it one after the other, perhaps raise, perhaps catch what they raise."""

    entered: Any
    inside: tuple["Block", ...] = ()
    raises: type[BaseException] | None = None
    catches: bool = True


def blocks(entered: st.SearchStrategy[Any]) -> st.SearchStrategy[Block]:
    def around(inside: st.SearchStrategy[Block]) -> st.SearchStrategy[Block]:
        return st.builds(
            Block,
            entered,
            st.lists(inside, max_size=3).map(tuple),
            st.sampled_from([None, None, Failure, Stop, KeyboardInterrupt]),
            st.booleans(),
        )

    return st.recursive(st.builds(Block, entered), around, max_leaves=10)


@dataclass
class Runner:
    """Runs blocks; after each of them the state must be what it was before."""

    enter: Callable[[Any], AbstractContextManager[Any]]
    state: Callable[[], Any]
    depth: int = field(default=0)

    def run(self, block: Block) -> None:
        before = self.state()
        try:
            with self.enter(block.entered):
                for child in block.inside:
                    self.run(child)
                if block.raises:
                    raise block.raises
        except (Failure, Stop, KeyboardInterrupt):
            assert self.state() == before
            if not block.catches:
                raise
        assert self.state() == before

    def run_all(self, program: list[Block]) -> None:
        before = self.state()
        try:
            for block in program:
                self.run(block)
        except (Failure, Stop, KeyboardInterrupt):
            pass
        assert self.state() == before


# --- what a user may change by hand, outside msctx ----------------------------------------------------------------------


def _set_deterministic(value: tuple[bool, bool]) -> None:
    _C._set_deterministic_algorithms(value[0], warn_only=value[1])


def _inductor() -> Any:
    import torch._inductor.config

    return torch._inductor.config._config["deterministic"].user_override


def _environment() -> dict[str, str]:
    import os

    return os.environ  # type: ignore[return-value]


def _put_variable(value: str | None) -> None:
    _environment().pop("TORCHINDUCTOR_DETERMINISTIC", None)
    if value is not None:
        _environment()["TORCHINDUCTOR_DETERMINISTIC"] = value


def _get_device() -> str | None:
    return SWITCHES["torch.default_device"].read()


BY_HAND: dict[str, tuple[Callable[[], Any], Callable[[Any], None], list[Any]]] = {
    "deterministic": (
        lambda: (_C._get_deterministic_algorithms(), _C._get_deterministic_algorithms_warn_only()),
        _set_deterministic,
        [(a, b) for a in (True, False) for b in (True, False)],
    ),
    "fill": (
        _C._get_deterministic_fill_uninitialized_memory,
        _C._set_deterministic_fill_uninitialized_memory,
        [True, False],
    ),
    "mkldnn": (_C._get_mkldnn_deterministic, _C._set_mkldnn_deterministic, [True, False]),
    "cudnn": (_C._get_cudnn_deterministic, _C._set_cudnn_deterministic, [True, False]),
    "benchmark": (_C._get_cudnn_benchmark, _C._set_cudnn_benchmark, [True, False]),
    "threads": (torch.get_num_threads, torch.set_num_threads, [1, 2, 3]),
    "anomaly": (
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda value: torch.set_anomaly_enabled(*value),
        [(a, b) for a in (True, False) for b in (True, False)],
    ),
    "multithreading": (_C._is_multithreading_enabled, _C._set_multithreading_enabled, [True, False]),
    "recursion": (sys.getrecursionlimit, sys.setrecursionlimit, [3000, 7000]),
    "inductor": (lambda: _inductor().get(), lambda value: _inductor().set(value), [True, False]),
    "variable": (lambda: _environment().get("TORCHINDUCTOR_DETERMINISTIC"), _put_variable, ["0", "1", None]),
    "default device": (_get_device, torch.set_default_device, ["cpu", "meta", None]),
    "random numbers": (torch.get_rng_state, lambda s: torch.set_rng_state(s) if torch.is_tensor(s) else torch.rand(s), [1, 7]),
}


@contextmanager
def by_hand(name: str, value: Any) -> Iterator[None]:
    """A user who changes something and, later, puts it back."""
    read, write, _ = BY_HAND[name]
    found = read()
    write(value)
    try:
        yield
    finally:
        write(found)


changes_by_hand = st.sampled_from(sorted(BY_HAND)).flatmap(
    lambda name: st.tuples(st.just(name), st.sampled_from(BY_HAND[name][2]))
)


# --- contexts ---------------------------------------------------------------------------------------------------------


def _sometimes(**choices: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=choices)


options = st.builds(
    lambda a, b, c: a | b | c,
    _sometimes(
        deterministic=st.sampled_from(["ON", "OFF", True, False, 1, 0]),
        deterministic_warn_only=st.booleans(),
        fill_uninitialized_memory=st.booleans(),
        runtime_num_threads=st.integers(0, 4),
        pynative_synchronize=st.booleans(),
        max_call_depth=st.sampled_from([1, 80, 1000, 2500]),
        conv_allow_tf32=st.booleans(),
        matmul_allow_tf32=st.booleans(),
        gpu_config=_sometimes(conv_allow_tf32=st.booleans(), matmul_allow_tf32=st.booleans()),
        mode=st.sampled_from([0, 1]),
    ),
    st.one_of(st.just({}), st.builds(lambda seed: {"seed": seed, "seed_scope": True}, st.integers(0, 2**32 - 1))),
    st.one_of(
        st.just({}),
        st.builds(
            lambda on, number: {"device_target": "CPU", "default_device": on, "device_id": number}, st.booleans(), st.just(0)
        ),
    ),
)


@settings(max_examples=300, **common)
@given(program=st.lists(blocks(st.one_of(options, options, changes_by_hand)), min_size=1, max_size=3))
def test_contexts_restore_the_exact_state_at_each_level(exact_state: State, one_example: Example, program: list[Block]) -> None:
    def enter(entered: Any) -> AbstractContextManager[Any]:
        return msctx.context(**entered) if isinstance(entered, dict) else by_hand(*entered)

    with one_example():
        Runner(enter, lambda: (exact_state(), generators())).run_all(program)


@settings(max_examples=60, **common)
@given(
    program=st.lists(blocks(options), min_size=1, max_size=2),
    base=st.lists(st.one_of(options, st.none()), min_size=1, max_size=3),
)
def test_contexts_over_set_context(
    exact_state: State, one_example: Example, program: list[Block], base: list[dict[str, Any] | None]
) -> None:
    found = exact_state(), generators()
    with one_example():
        for more in base:
            msctx.reset_context() if more is None else msctx.set_context(**more)
            inside = exact_state(), generators()
            Runner(lambda entered: msctx.context(**entered), lambda: (exact_state(), generators())).run_all(program)
            assert (exact_state(), generators()) == inside
        msctx.reset_context()
    assert (exact_state(), generators()) == found


IN_FORCE: dict[str, Callable[[], Any]] = {
    "runtime_num_threads": torch.get_num_threads,
    "max_call_depth": SWITCHES["torch.nn.max_call_depth"].read,
    "pynative_synchronize": torch.is_anomaly_enabled,
    "deterministic": lambda: "ON" if torch.are_deterministic_algorithms_enabled() else "OFF",
}


@settings(max_examples=60, **common)
@given(layers=st.lists(options, min_size=1, max_size=5))
def test_the_innermost_value_is_in_force(layers: list[dict[str, Any]]) -> None:
    merged: dict[str, Any] = {}
    with ExitStack() as stack:
        for layer in layers:
            flat = {name: value for name, value in layer.items() if name != "gpu_config"}
            stack.enter_context(msctx.context(**flat))
            if "deterministic" in flat:
                flat["deterministic"] = "ON" if flat["deterministic"] in ("ON", 1) else "OFF"
            merged |= flat
            assert msctx.get_context() == merged
            for name in set(merged) & set(IN_FORCE):
                if merged[name] or name != "runtime_num_threads":  # 0 keeps torch's number
                    assert IN_FORCE[name]() == merged[name], name


# --- assignments ------------------------------------------------------------------------------------------------------

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "torch.num_threads": st.integers(1, 4),
    "torch.default_device": st.sampled_from([None, "cpu", "meta"]),
    "torch.nn.max_call_depth": st.sampled_from([None, 1, 80, 2000]),
    "python.recursion_limit": st.integers(2000, 20000),
    "rng.saved": st.just(True),
    **{
        f"native.conv_{direction}_algo": st.sampled_from([None, "normal", "fft", "reference"])
        for direction in ("fprop", "dgrad", "wgrad")
    },
    "native.conv_algo_rules": st.sampled_from([None, "layer.*: fprop=gemm", "weight=3x*: dgrad=algo_1, wgrad=fft"]),
    "native.tuning_file": st.sampled_from([None]),
    "native.conv_workspace_limit": st.sampled_from([None, 0, 2**20]),
    "native.fallback": st.sampled_from(["warn", "error", "silent"]),
}
PRECISION = ["torch.cudnn.allow_tf32", "torch.cuda.matmul.allow_tf32"]
RESTORABLE = [
    name
    for name, switch in SWITCHES.items()
    if switch.restore == "exact" and switch.write is not None and switch.available() and not name.endswith("memory_cap")
]


def test_every_restorable_switch_is_drawn() -> None:
    assert {"torch.deterministic", "torch.cudnn.benchmark", *PRECISION, *VALUES} <= set(RESTORABLE)
    booleans = set(RESTORABLE) - set(VALUES)
    assert all(isinstance(SWITCHES[name].read(), bool) for name in booleans), "a switch of another type needs values here"


def assignments(names: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={name: VALUES.get(name, st.booleans()) for name in names})


@contextmanager
def scope(assigned: dict[str, Any]) -> Iterator[None]:
    hold = apply.apply(assigned, "with-block")
    unmet = {name: (value, SWITCHES[name].read()) for name, value in assigned.items() if not SWITCHES[name].is_satisfied(value)}
    try:
        yield
    finally:
        apply.undo(hold)
    assert not unmet


@settings(max_examples=300, **common)
@given(program=st.lists(blocks(st.one_of(assignments(RESTORABLE), changes_by_hand)), min_size=1, max_size=3))
def test_assignments_restore_the_exact_state_at_each_level(
    exact_state: State, one_example: Example, program: list[Block]
) -> None:
    def enter(entered: Any) -> AbstractContextManager[Any]:
        return scope(entered) if isinstance(entered, dict) else by_hand(*entered)

    with one_example(), warnings.catch_warnings():
        warnings.simplefilter("error", MsctxWarning)  # whoever changes something puts it back before the scope is left
        Runner(enter, exact_state).run_all(program)


precision_calls = st.one_of(
    st.builds(lambda v: (_C._set_float32_matmul_precision, v), st.sampled_from(["highest", "high", "medium"])),
    st.builds(lambda v: (_C._set_cublas_allow_tf32, v), st.booleans()),
    st.builds(lambda v: (_C._set_cudnn_allow_tf32, v), st.booleans()),
    st.builds(
        lambda node, v: (lambda value: _C._set_fp32_precision_setter(*node, value), v),
        st.tuples(st.sampled_from(["generic", "cuda", "mkldnn"]), st.sampled_from(["all", "matmul", "conv", "rnn"])).filter(
            lambda node: node[0] != "generic" or node[1] == "all"
        ),
        st.sampled_from(["none", "ieee", "tf32"]),
    ),
    st.builds(
        lambda op, v: (lambda value: _C._set_fp32_precision_setter("mkldnn", op, value), v),
        st.sampled_from(["all", "matmul", "conv", "rnn"]),
        st.just("bf16"),
    ),
)


def old_getters() -> list[Any]:
    """What code that knows only the old API gets to see."""
    found: list[Any] = []
    for getter in (_C._get_float32_matmul_precision, _C._get_cublas_allow_tf32, _C._get_cudnn_allow_tf32):
        try:
            found.append(getter())
        except RuntimeError:
            found.append("raises")
    return found


@settings(max_examples=300, **common)
@given(calls=st.lists(precision_calls, max_size=4), outer=assignments(PRECISION), inner=assignments(PRECISION))
def test_precision_is_restored_whatever_it_was(
    exact_state: State,
    one_example: Example,
    calls: list[tuple[Callable[[Any], None], Any]],
    outer: dict[str, bool],
    inner: dict[str, bool],
) -> None:
    def state() -> Any:
        return exact_state(), old_getters()

    with one_example():
        for call, value in calls:
            call(value)
        before = state()
        with scope(outer):
            between = state()
            with scope(inner):
                pass
            assert state() == between
        assert state() == before


# --- the ledger against a model ---------------------------------------------------------------------------------------


class Library(dict[str, Any]):
    """Three globals, and switches for them that may be told to fail."""

    def __init__(self) -> None:
        super().__init__(a=0, b=0, c=0)
        self.failing: str | None = None

    def switches(self) -> dict[str, Switch]:
        def make(name: str) -> Switch:
            def write(value: Any) -> None:
                if self.failing == name:
                    self.failing = None
                    self[name] = "half written"
                    raise RuntimeError("no")
                self[name] = value

            return Switch(name=name, read=lambda: self[name], write=write)

        return {name: make(name) for name in self}


some = st.fixed_dictionaries({}, optional={name: st.integers(1, 9) for name in "abc"})
steps = st.one_of(
    st.tuples(st.just("enter"), some, st.sampled_from([None, None, *"abc"])),
    st.tuples(st.just("leave"), st.just({}), st.none()),
    st.tuples(st.just("base"), some, st.sampled_from([None, None, *"abc"])),
)


@settings(max_examples=600, **common)
@given(program=st.lists(steps, max_size=14))
def test_base_and_scopes_agree_with_a_model(
    one_example: Example, program: list[tuple[str, dict[str, int], str | None]]
) -> None:
    """In force is the innermost scope's value, else the base's, else what was found; a step that fails changes nothing."""
    library = Library()
    hold = apply.Hold("set_context", base=True)
    base: dict[str, int] = {}
    scopes: list[tuple[apply.Hold, dict[str, int]]] = []

    def model() -> dict[str, int]:
        found = {"a": 0, "b": 0, "c": 0} | base
        for _, values in scopes:
            found |= values
        return found

    with one_example(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(apply, "SWITCHES", library.switches())
        for kind, values, failing in program:
            if kind == "leave":
                if scopes:
                    apply.undo(scopes.pop()[0])
            else:
                library.failing = failing
                try:
                    if kind == "enter":
                        scopes.append((apply.apply(values, "scope"), values))
                    else:
                        apply.rebase(hold, values)
                        base = values
                except msctx.MsctxError:
                    pass
                library.failing = None
            assert library == model()
        while scopes:
            apply.undo(scopes.pop()[0])
            assert library == model()
        apply.rebase(hold, {})
        assert library == {"a": 0, "b": 0, "c": 0}
    assert not any(apply._ledger.values())


# --- garbage ----------------------------------------------------------------------------------------------------------

SPELLINGS = sorted({spelling for option in OPTIONS.values() for spelling in option.spellings})
plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-1, 9),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=8),
    st.sampled_from(["ON", "off", "0", "1", "true", "4GB", "-1GB", "0", "", " ", "1e9", "٣GB", "GPU", "a,b", "\0", "\ud800"]),
    st.from_regex(r"\A\d{1,400}(\.\d+)?\s*[KMGTkmgt]?i?[Bb]?\Z"),
    st.just(math.nan),
    st.complex_numbers(),
)
garbage = st.recursive(
    plain,
    lambda inside: st.one_of(
        st.lists(inside, max_size=3),
        st.tuples(inside, inside),
        st.dictionaries(
            st.one_of(st.text(max_size=8), st.integers(), st.none(), st.sampled_from(SPELLINGS)), inside, max_size=3
        ),
        st.frozensets(st.integers(), max_size=3),
    ),
    max_leaves=6,
)


def refuse_or_take(give: Callable[[], Any], exact_state: State) -> None:
    before = exact_state(), generators()
    refused: OptionError | None = None
    try:
        give()
    except OptionError as error:
        refused = error
    if refused is not None:
        assert refused.problems
        assert all(problem.text for problem in refused.problems)
        assert "nothing was changed" in str(refused)
    assert (exact_state(), generators()) == before


@settings(max_examples=600, **common)
@given(spelling=st.sampled_from(SPELLINGS), value=garbage)
def test_garbage_is_refused_and_changes_nothing(exact_state: State, spelling: str, value: Any) -> None:
    refuse_or_take(lambda: msctx.context(**{spelling: value}), exact_state)
    refuse_or_take(lambda: msctx.explain({spelling: value}, device="cuda"), exact_state)


THINGS = {
    "no value": [object(), 1j, {1, 2}, len, math.nan, torch.ones(2), torch.tensor([]), numpy.ones(2), range(3)],
    "too large": [10**5000, -(10**5000), "9" * 5000, "9" * 400 + "GB", "9" * 400 + ".5G", "1" + "0" * 330 + "KB"],
    "like a value": [torch.tensor(1), numpy.int64(1), numpy.True_, numpy.float64(1), numpy.array("ON")],
}


@pytest.mark.parametrize("kind", THINGS)
def test_things_that_are_no_plain_data(exact_state: State, kind: str) -> None:
    for spelling in SPELLINGS:
        for value in THINGS[kind]:
            try:
                msctx.context(**{spelling: value})
            except OptionError:
                continue
            except Exception as error:
                pytest.fail(f"{spelling}: {type(error).__name__}: {error}")
            assert kind != "no value", f"{spelling} took {value!r}"


@settings(max_examples=150, **common)
@given(names=st.dictionaries(st.text(max_size=20), garbage, min_size=1, max_size=3))
def test_unknown_names_are_refused(exact_state: State, names: dict[str, Any]) -> None:
    refuse_or_take(lambda: msctx.context(**names), exact_state)
    if not set(names) & {*SPELLINGS, *(spelling.partition(".")[0] for spelling in SPELLINGS), "preset"}:
        with pytest.raises(OptionError) as caught:
            msctx.context(**names)
        assert len(caught.value.problems) == len(names), "not all problems at once"


@settings(max_examples=100, **common)
@given(preset=st.one_of(garbage, st.text(max_size=8).map(lambda name: name + ".yaml")))
@example(preset="no\0name.yaml")
@example(preset="\ud800.yaml")
@example(preset="x" * 5000 + ".yaml")
def test_garbage_for_a_preset(exact_state: State, preset: Any) -> None:
    if preset in (None, "") or preset in [*presets()]:
        return
    before = exact_state()
    with pytest.raises(msctx.MsctxError):
        msctx.context(preset)
    assert exact_state() == before


@settings(max_examples=100, **common)
@given(spelling=st.sampled_from(SPELLINGS), value=st.one_of(plain, garbage))
def test_garbage_for_set_context(exact_state: State, spelling: str, value: Any) -> None:
    """Checked before anything is set: beside a good option nothing is set either."""
    if spelling == "runtime_num_threads":
        return
    before = exact_state()
    try:
        msctx.context(**{spelling: value})
    except OptionError:
        with pytest.raises(OptionError):
            msctx.set_context(**{spelling: value, "runtime_num_threads": torch.get_num_threads() + 1})
    assert exact_state() == before
    assert msctx.get_context() == {}


# --- dictionaries of right and wrong keys and values ------------------------------------------------------------------

SAFE = [o for o in OPTIONS.values() if o.name not in ("inter_op_parallel_num", "max_device_memory", "seed")]
"""Options whose values can be put back, and of which none says how many digits of a generator are drawn."""
right = st.sampled_from(SAFE).flatmap(
    lambda option: st.tuples(st.sampled_from(option.spellings), st.sampled_from(values(option)))
)
wrong = st.one_of(
    st.tuples(st.sampled_from(SPELLINGS), garbage),
    st.tuples(st.sampled_from(["gpu_config", "session", "runtime", "device_context", "ascend_config.ge_options"]), garbage),
    st.tuples(st.text(max_size=12), plain),
)
dictionaries = st.lists(st.one_of(right, right, right, wrong), max_size=8).map(dict)


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """The same with dictionaries in place of dotted names, where no key stands in the way."""
    made: dict[str, Any] = {}
    for name, value in flat.items():
        at = made
        *groups, last = name.split(".")
        for group in groups:
            at = at.setdefault(group, {}) if isinstance(at.get(group, {}), dict) else made
        at[last] = value
    return made


@settings(max_examples=400, **common)
@given(options=dictionaries, nest=st.booleans())
def test_a_dictionary_is_taken_whole_or_not_at_all(exact_state: State, options: dict[str, Any], nest: bool) -> None:
    options = nested(options) if nest else options
    before = exact_state(), generators(), msctx.get_context()
    try:
        with msctx.context(**options) as ctx:
            json.dumps(ctx.plan.as_dict())
            assert set(msctx.get_context()) == set(ctx.settings)
    except (OptionError, DeviceError, StrictError, SwitchError) as error:
        refused = str(error)
    else:
        refused = ""
    assert not refused or "othing was changed" in refused or "put back" in refused
    assert (exact_state(), generators(), msctx.get_context()) == before


@settings(max_examples=200, **common)
@example(first={"function": None, "self": 1}, second={"args": 1, "kwargs": 1, "options": 1, "preset": None})
@given(first=dictionaries, second=dictionaries)
def test_set_context_takes_a_dictionary_whole_or_not_at_all(
    exact_state: State, first: dict[str, Any], second: dict[str, Any]
) -> None:
    found = exact_state()
    try:
        for options in (first, second):
            before = exact_state(), msctx.get_context()
            try:
                msctx.set_context(**options)
            except (OptionError, DeviceError, StrictError, SwitchError):
                assert (exact_state(), msctx.get_context()) == before
    finally:
        msctx.reset_context()
    assert exact_state() == found

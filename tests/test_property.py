"""For any input: scopes nested at random restore the exact state at each level."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from old_precision import old_getters
from properties import (
    PRINTS,
    Block,
    Example,
    Runner,
    State,
    blocks,
    by_hand,
    changes_by_hand,
    common,
    marks,
    of_every_option,
)
from torch import _C

import msctx
from msctx import devices
from msctx.context import Context, ledger
from msctx.errors import MsctxWarning
from msctx.options import Layer
from msctx.options.algorithm_policy import ConvPolicy
from msctx.options.switch_values import (
    Compilation,
    CompileCache,
    Dump,
    ErrorDump,
    GraphFiles,
    Kernels,
    Overflow,
    Recorder,
    Shapes,
)
from msctx.switches import EXACT, SWITCHES, Switch, present
from msctx.switches.base import RESTORED
from msctx.themes import Facts

pytestmark = marks


# --- contexts ---------------------------------------------------------------------------------------------------------


@settings(max_examples=300, **common)
@given(
    program=st.lists(blocks(st.one_of(of_every_option("CPU"), of_every_option("CPU"), changes_by_hand)), min_size=1, max_size=3)
)
def test_contexts_restore_the_exact_state_at_each_level(exact_state: State, one_example: Example, program: list[Block]) -> None:
    def enter(entered: Any) -> AbstractContextManager[Any]:
        return msctx.context(**entered) if isinstance(entered, dict) else by_hand(*entered)

    with one_example():
        Runner(enter, exact_state).run_all(program)


# --- the law: what holds in any nesting is what the merged options alone come to -----------------------------------------

Program = list[tuple[str, dict[str, Any]]]


def programs(*targets: str) -> st.SearchStrategy[Program]:
    options = of_every_option(*targets)
    step = st.one_of(
        st.tuples(st.just("enter"), options),
        st.tuples(st.just("enter"), options),
        st.tuples(st.just("set"), options),
        st.tuples(st.sampled_from(["leave", "reset"]), st.just({})),
    )
    return st.lists(step, min_size=1, max_size=7)


def check_law(program: Program, state: State) -> None:
    """What holds after each step is what its layers alone come to; in the end there is what was found."""
    seen: list[tuple[tuple[Layer, ...], dict[str, Any]]] = []
    scopes: list[Any] = []
    found = state()
    for kind, values in [*program, *[("leave", {})] * len(program)]:
        with suppress(msctx.MsctxError):  # nothing was changed: the state shows
            if kind == "enter":
                scopes.append(msctx.context(**values))
                try:
                    scopes[-1].__enter__()
                except BaseException:
                    scopes.pop()
                    raise
            elif kind == "set":
                msctx.set_context(**values)
            elif kind == "reset":
                msctx.reset_context()
            elif scopes:
                scopes.pop().__exit__()
        seen.append((msctx.current().settings.layers, state()))
    msctx.reset_context()
    assert state() == found
    for layers, nested in seen:
        with Context(layers):
            assert nested == state()


@settings(max_examples=80, **common)
@given(program=programs("CPU"))
def test_the_state_in_any_nesting_is_that_of_the_merged_options_alone(
    exact_state: State, one_example: Example, program: Program
) -> None:
    with one_example():
        check_law(program, exact_state)


@pytest.mark.parametrize(("device", "target"), [("cuda", "GPU"), ("ascend", "Ascend")])
@settings(max_examples=120, **common)
@given(data=st.data())
def test_the_same_holds_with_an_accelerator(one_example: Example, device: str, target: str, data: st.DataObject) -> None:
    """What is written goes to globals of an made-up machine. Left out: what stays after a with-block, and what generators save."""
    program = data.draw(programs("CPU", target))
    machine: dict[str, Any] = {name: f"{name} found" for name, switch in SWITCHES.items() if switch.write is not None}

    def imagined(name: str) -> Switch:
        real = SWITCHES[name]
        more = {"scope": real.scope, "restore": real.restore}
        return Switch(name=name, read=lambda: machine[name], write=lambda value: machine.update({name: value}), **more)

    def state() -> dict[str, Any]:
        return {name: value for name, value in machine.items() if SWITCHES[name].restore in EXACT}

    with one_example(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "here", lambda: ("cpu", device))
        patch.setattr(devices, "facts", lambda settings=(), free_memory=0: Facts(devices=("cpu", device)))
        patch.setattr(ledger, "SWITCHES", {name: imagined(name) for name in machine})
        patch.setattr("msctx.switches.prepare", lambda assignments: False)
        check_law(program, state)


# --- assignments ------------------------------------------------------------------------------------------------------

POLICIES = st.builds(
    ConvPolicy,
    conv_fprop_algo=st.sampled_from(["normal", "fft", "reference", "torch"]),
    conv_algo_rules=st.sampled_from([None, "layer.*: fprop=gemm", "weight=3x*: dgrad=algo_1, wgrad=fft"]),
    conv_workspace_limit=st.sampled_from([None, 0, 2**20]),
    conv_max_error=st.sampled_from([None, 1e-6, 0.5]),
    fallback=st.sampled_from(["warn", "error", "silent"]),
    work_path=st.sampled_from([None, PRINTS.name]),
    **{field.name: st.booleans() for field in fields(ConvPolicy) if field.type == "bool"},
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "torch.num_threads": st.integers(1, 4),
    "torch.default_device": st.sampled_from([None, "cpu", "meta"]),
    "torch.accelerator.allocator_settings": st.sampled_from(
        [
            None,
            {"large_segment_size_mb": 64},
            {"expandable_segments": True},
            {"large_segment_size_mb": 32, "expandable_segments": True},
        ]
    ),
    "torch.dataloader.shared": st.sampled_from([None, *({"rank": rank, "ranks": [0, 1]} for rank in (0, 1))]),
    "session.graph_run_mode": st.sampled_from(["inference", "training"]),
    "session.iterations_per_loop": st.integers(1, 4),
    "session.graph_max_parallel_model_num": st.integers(1, 4),
    "session.low_precision": st.builds(
        lambda until: {"policies": {"cpu": '{"precision_mode":"force_fp16"}'}, "until": until, "ratio": 0.5},
        st.sampled_from(["step", "loss"]),
    ),
    "torch.nn.max_call_depth": st.sampled_from([None, 1, 80, 2000]),
    "python.recursion_limit": st.integers(2000, 20000),
    "env.NCCL_ALGO": st.sampled_from(["Ring", "^NVLS"]),
    "env.ACL_STREAM_TIMEOUT": st.sampled_from([None, "-1", "900"]),
    "rng.saved": st.just(True),
    "torch.profiler": st.none(),  # one that runs writes files
    "native.convolution.cpu": st.none() | POLICIES,
    **{
        f"native.precision.{device}": st.sampled_from(
            [
                '{"precision_mode":"force_fp16"}',
                '{"precision_mode":"must_keep_origin_dtype"}',
                '{"enable_reduce_precision":true}',
            ]
        )
        for device in ("cpu", "cuda", "ascend")
    },
    "native.memory_pool": st.sampled_from([None, 0, 100, 150]),
    "native.memory_caps": st.sampled_from([(), ((2**30, "a"),), ((2**30, "a"), (2**28, "b")), ((2**29, "c"),)]),
    "torch.inductor.max_autotune_conv_backends": st.sampled_from(["ATEN", "TRITON", "ATEN,TRITON"]),
    "models.parameters": st.sampled_from([None, "host", "file"]),
    "models.weight_format": st.sampled_from([None, "channels_last", "contiguous"]),
    **{f"models.gathered_ahead_{way}": st.sampled_from([None, True, False]) for way in ("forward", "backward")},
    **{
        f"torch.inductor.bucket_{kind}_fx": st.sampled_from(["none", "all"])
        for kind in ("all_gathers", "reduce_scatters", "all_reduces")
    },
    "torch.inductor.reorder_for_compute_comm_overlap_passes": st.sampled_from([[], ["sink_waits"]]),
    "env.DISABLE_PTXAS_OPT": st.sampled_from(["0", "1"]),
    "env.TORCHINDUCTOR_PATTERN_MATCH_DEBUG": st.sampled_from(["msctx", "other"]),
    "torch.inductor.trace.provenance_tracking_level": st.sampled_from([0, 1]),
    "torch.inductor.trace.debug_dir": st.sampled_from([None, "traces"]),
    "torch.compiler.cache": st.sampled_from(
        [None, CompileCache(off=True), *(CompileCache(f"{PRINTS.name}/{n}") for n in "ab")]
    ),
    "torch.compiler.job_id": st.sampled_from(["a", "b"]),
    "torch.dynamo.apart": st.sampled_from([None, {"oom": True}, {"ccec_g": True}]),
    **dict.fromkeys(("torch.logs.dynamo", "torch.logs.aot", "torch.logs.inductor"), st.sampled_from([10, 20])),
    "observers.graph_files": st.sampled_from([None, *(GraphFiles(level, f"{PRINTS.name}/g") for level in (1, 3))]),
    "graph.compilation": st.sampled_from(
        [None, Compilation(), Compilation(whole=True), Compilation(shapes=Shapes(dynamic=True))]
    ),
    "observers.kernels": st.sampled_from([None, Kernels(f"{PRINTS.name}/k"), Kernels(f"{PRINTS.name}/k", locations=True)]),
    "observers.fusions": st.none(),  # a count writes files
    "observers.dump": st.sampled_from([None, *(Dump(f"{PRINTS.name}/{name}", data="stats") for name in "de")]),
    "observers.overflow": st.sampled_from(
        [None, Overflow(f"{PRINTS.name}/o"), Overflow(f"{PRINTS.name}/o", "atomic_overflow")]
    ),
    "observers.errors": st.sampled_from([None, ErrorDump(1), ErrorDump(2)]),
    "observers.recorder": st.sampled_from([None, Recorder(f"{PRINTS.name}/r"), Recorder(f"{PRINTS.name}/s")]),
    "observers.watchdog": st.sampled_from([None, 900, 1000]),
    "observers.deterministic_except": st.sampled_from([None, ("exp",), ("sin",)]),
    "torch.distributed.timeout": st.sampled_from([0, 60, 1800]),
    "torch.deterministic": st.sampled_from([False, True, "warn_only"]),
    "torch.anomaly_mode": st.sampled_from([False, True, "without check_nan"]),
    "observers.replicas": st.sampled_from([None, 10, 50]),
    "observers.print_file": st.sampled_from([None, f"{PRINTS.name}/a", f"{PRINTS.name}/b"]),
}
PRECISION = ["torch.cudnn.allow_tf32", "torch.cuda.matmul.allow_tf32"]
RESTORABLE = [
    name
    for name, switch in SWITCHES.items()
    if switch.restore in RESTORED and switch.write is not None and switch in present() and not name.endswith("memory_cap")
]


def test_every_restorable_switch_is_drawn() -> None:
    older = {name for name in ("torch.accelerator.allocator_settings",) if SWITCHES[name] not in present()}
    assert {"torch.deterministic", "torch.cudnn.benchmark", *PRECISION, *VALUES} - older <= set(RESTORABLE)
    booleans = set(RESTORABLE) - set(VALUES)
    assert all(isinstance(SWITCHES[name].read(), bool) for name in booleans), "a switch of another type needs values here"


def assignments(names: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={name: VALUES.get(name, st.booleans()) for name in names})


@contextmanager
def scope(assigned: dict[str, Any]) -> Iterator[None]:
    hold = ledger.apply(assigned, ledger.Hold("with-block"))
    unmet = {name: (value, SWITCHES[name].read()) for name, value in assigned.items() if not SWITCHES[name].is_satisfied(value)}
    try:
        yield
    finally:
        ledger.undo(hold)
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
        warnings.filterwarnings("ignore", ".*the dump continues", MsctxWarning)  # tensors of a drawn default device
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

    def answers() -> set[str]:
        """What of the old API does not raise: it goes on answering inside scopes."""
        return {name for name, value in old_getters().items() if value != "raises"}

    with one_example():
        for call, value in calls:
            call(value)
        before, answered = state(), answers()
        with scope(outer):
            between = state()
            assert answers() >= answered
            with scope(inner):
                assert answers() >= answered
            assert state() == between
        assert state() == before

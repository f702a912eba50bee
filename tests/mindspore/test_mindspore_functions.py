"""The functions of MindSpore 2.5 to 2.7 that set options: arguments, exceptions, what can be set once, and targets."""

import inspect
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import msctx
import msctx.mindspore as ms
from msctx import devices
from msctx.errors import MsctxError, MsctxWarning, OptionError, StrictError
from msctx.mindspore.errors import KINDS, NotCarriedOut
from msctx.mindspore.functions import FUNCTIONS


class Case(NamedTuple):
    """A function: two good values with what msctx's option is then, wrong values by exception, and its rules."""

    option: str
    good: list[tuple[Any, Any]]
    types: list[Any]
    values: list[Any] = []
    target: str = ""
    once: bool = False
    equal: bool = False


ALGORITHM = {"types": [], "values": ["Winograd", 1, None, "", "implicit_precomp_gemm"], "target": "GPU"}
ASCEND: dict[str, Any] = {"target": "Ascend", "once": True, "equal": True}
HF32: dict[str, Any] = {"good": [(True, True), (False, False)], "types": [], "values": [2, "True", None], **ASCEND}

CASES = {
    "set_deterministic": Case("deterministic", [(True, "ON"), (False, "OFF")], [1, "ON", None], once=True),
    "set_recursion_limit": Case("max_call_depth", [(1, 1), (5000, 5000)], [True, "1", 1.5, None], [0, -1]),
    "runtime.dispatch_threads_num": Case("inter_op_parallel_num", [(6, 6), (2, 2)], [True, "1", 1.5, None], [0, -1], once=True),
    "device_context.cpu.op_tuning.threads_num": Case(
        "runtime_num_threads", [(1, 1), (2, 2)], [True, "1", 1.5, None], [0, -1], once=True
    ),
    "device_context.gpu.op_precision.matmul_allow_tf32": Case(
        "matmul_allow_tf32", [(True, True), (False, False)], [1, "True", None], target="GPU"
    ),
    "device_context.gpu.op_precision.conv_allow_tf32": Case(
        "conv_allow_tf32", [(False, False), (True, True)], [0, "True", None], target="GPU"
    ),
    "device_context.gpu.op_tuning.conv_fprop_algo": Case(
        "conv_fprop_algo", [("precomp_gemm", "implicit_precomp_gemm"), ("fft", "fft")], **ALGORITHM
    ),
    "device_context.gpu.op_tuning.conv_dgrad_algo": Case(
        "conv_dgrad_algo", [("algo_1", "algo_1"), ("fft", "fft")], **ALGORITHM
    ),
    "device_context.gpu.op_tuning.conv_wgrad_algo": Case(
        "conv_wgrad_algo", [("algo_3", "algo_3"), ("fft", "fft")], **ALGORITHM
    ),
    "device_context.ascend.op_precision.precision_mode": Case(
        "precision_mode",
        [("force_fp32", "force_fp32"), ("must_keep_origin_dtype", "must_keep_origin_dtype")],
        [],
        [2, None, "fp16", "cube_fp16in_fp32out"],
        **ASCEND,
    ),
    "device_context.ascend.op_precision.matmul_allow_hf32": Case("matmul_allow_hf32", **HF32),
    "device_context.ascend.op_precision.conv_allow_hf32": Case("conv_allow_hf32", **HF32),
    "device_context.ascend.op_tuning.op_compile": Case(
        "jit_compile", [(True, "true"), (False, "false")], [2, "true", None, "auto"], **ASCEND
    ),
    "device_context.ascend.op_tuning.aoe_tune_mode": Case(
        "aoe_tune_mode", [("online", "online"), ("offline", "offline")], [], ["ONLINE", 1, None], **ASCEND
    ),
    "device_context.ascend.op_tuning.aoe_job_type": Case(
        "aoe_config.job_type", [("1", "1"), ("2", "2")], [], [1, "3", None], **ASCEND
    ),
    "device_context.ascend.op_debug.execute_timeout": Case(
        "op_timeout", [(100, 100), (200, 200)], ["1", 1.5, None], [-1], **ASCEND
    ),
}
FILES = {"device_context.ascend.op_precision.op_precision_mode"}


def function(name: str) -> Callable[..., None]:
    found: Any = ms
    for part in name.split("."):
        found = getattr(found, part)
    return found


def set_target(case: Case) -> None:
    if case.target:
        ms.set_context(device_target=case.target)


def other_than(target: str) -> str:
    return "CPU" if target == "GPU" else "GPU"


def test_the_table_has_every_function() -> None:
    assert {*CASES, *FILES} == {*FUNCTIONS}


# --- each function ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_good_and_wrong_values(name: str) -> None:
    case = CASES[name]
    set_target(case)
    before = msctx.get_context()
    for kind, values in ((TypeError, case.types), (ValueError, case.values)):
        for given in values:
            with pytest.raises(kind) as caught:
                function(name)(given)
            assert isinstance(caught.value, MsctxError)
            assert isinstance(caught.value, ValueError) == (kind is ValueError), given
            assert msctx.get_context() == before
    for given, value in case.good:
        msctx.reset_context()
        set_target(case)
        assert function(name)(given) is None
        found = msctx.get_context(name, origin=True)
        assert found.value == value
        assert found.origin.startswith(f"ms.{name} at test_mindspore_functions.py:")


@pytest.mark.parametrize("name", CASES)
def test_the_argument_has_mindspores_name(name: str) -> None:
    case = CASES[name]
    set_target(case)
    (argument,) = inspect.signature(function(name)).parameters
    function(name)(**{argument: case.good[0][0]})
    for args, kwargs in (((1, 2), {}), ((), {"nonsense": 1})):
        with pytest.raises(TypeError, match=rf"ms\.{name}\(\) takes one argument, {argument}$"):
            function(name)(*args, **kwargs)


@pytest.mark.parametrize("name", CASES)
def test_what_can_be_set_once(name: str) -> None:
    case = CASES[name]
    set_target(case)
    (first, _), (second, value) = case.good
    function(name)(first)
    if not case.once:
        function(name)(second)
        assert msctx.get_context(name) == value
        return
    if case.equal:
        function(name)(first)
    for again in (second, *([] if case.equal else [first])):
        with pytest.raises(RuntimeError, match="only once"):
            function(name)(again)
    msctx.reset_context()
    set_target(case)
    function(name)(second)
    assert msctx.get_context(name) == value


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.target])
def test_on_another_target_the_value_is_dropped_with_a_warning_at_each_call(name: str) -> None:
    case = CASES[name]
    ms.set_context(device_target=other_than(case.target))
    for given in (case.good[0][0], case.good[0][0], *case.values):
        with pytest.warns(MsctxWarning, match=f"{name}.*{case.target} alone"):
            function(name)(given)
    assert set(msctx.get_context()) == {"device_target"}
    msctx.set_context(strict=True)
    with pytest.raises(StrictError, match="alone"):
        function(name)(case.good[0][0])


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.equal])
def test_a_value_that_is_in_force_does_not_count(name: str) -> None:
    case = CASES[name]
    set_target(case)
    msctx.set_context(**{case.option: case.good[0][1]})
    function(name)(case.good[0][0])
    function(name)(case.good[1][0])
    assert msctx.get_context(name) == case.good[1][1]


@pytest.mark.parametrize(
    ("name", "default", "other"), [("op_tuning.aoe_job_type", "2", "1"), ("op_debug.execute_timeout", 900, 60)]
)
def test_the_default_does_not_count_either(name: str, default: Any, other: Any) -> None:
    ms.set_context(device_target="Ascend")
    name = f"device_context.ascend.{name}"
    function(name)(default)
    assert msctx.get_context(name, origin=True).origin != "default"
    function(name)(other)
    with pytest.raises(RuntimeError, match="only once"):
        function(name)(default)


def test_the_newer_words_win_over_set_context() -> None:
    ms.set_context(device_target="GPU", gpu_config={"conv_fprop_algo": "fft"})
    ms.device_context.gpu.op_tuning.conv_fprop_algo("winograd")
    ms.set_context(gpu_config={"conv_fprop_algo": "gemm"})
    assert ms.get_context("conv_fprop_algo") == "winograd"


def test_op_precision_mode(tmp_path: Path) -> None:
    ms.set_context(device_target="Ascend")
    name = ms.device_context.ascend.op_precision.op_precision_mode
    for wrong in (1, None):
        with pytest.raises(TypeError):
            name(wrong)
    with pytest.raises(ValueError, match="there is no file"):
        name(str(tmp_path / "nothing.ini"))
    one, other = tmp_path / "one.ini", tmp_path / "other.ini"
    for path in (one, other):
        path.write_text("MatMul=high_precision\n")
    name(str(one))
    name(str(one))
    with pytest.raises(RuntimeError, match="only once"):
        name(str(other))


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("runtime.dispatch_threads_num", 1024),
        ("device_context.cpu.op_tuning.threads_num", 1024),
        ("set_recursion_limit", 2**31 - 1),
    ],
)
def test_values_above_the_maximum_are_clipped_with_a_warning(name: str, most: int) -> None:
    with pytest.raises(RuntimeError, match=f"32 bits\n.*to 4294967295; larger values are clipped to {most}"):
        function(name)(2**32)
    with pytest.warns(MsctxWarning, match=rf"{name}\(\w+\): {most + 1} is clipped to {most}"):
        function(name)(most + 1)
    assert msctx.get_context(name) == most
    with pytest.raises(OptionError):
        msctx.set_context(**{name: most + 1})


# --- the device -------------------------------------------------------------------------------------------------------


def test_set_device_and_the_current_one() -> None:
    ms.set_device("CPU")
    ms.set_device("CPU", 0)
    found = ms.get_current_device()
    assert found == ("CPU", 0)
    assert (found.device_target, found.device_id, repr(found)) == ("CPU", 0, "('CPU', 0)")
    for other in (("CPU", 1), ("GPU",), ("Ascend", 0)):
        with pytest.raises(RuntimeError, match="only once"):
            ms.set_device(*other)
    msctx.reset_context()
    ms.set_device("CPU", True)
    assert ms.get_current_device().device_id == 1


def test_set_device_accepts_a_target_that_is_not_here(absent: str) -> None:
    ms.set_device(absent, 2)
    assert ms.get_current_device() == (absent, 2)
    assert ms.get_context("device_target") == absent
    assert msctx.current().plan.missing


def test_set_device_rejects() -> None:
    rows: list[tuple[type[Exception], list[tuple[Any, ...]]]] = [
        (TypeError, [(1,), ("CPU", "0"), ("CPU", 1.0)]),
        (ValueError, [(None,), ("cpu",), ("Davinci",), ("CPU", -1), ("CPU", 4096)]),
        (RuntimeError, [("CPU", 2**40)]),
    ]
    for kind, wrong in rows:
        for args in wrong:
            with pytest.raises(kind) as caught:
                ms.set_device(*args)
            assert type(caught.value) is KINDS[kind], args
    with pytest.raises(TypeError, match="2 problems"):
        ms.set_device(1, "0")  # type: ignore[arg-type]
    assert not msctx.get_context()


def test_set_device_wins_over_set_context_and_gates() -> None:
    ms.set_device("GPU")
    ms.set_context(device_target="CPU", gpu_config={"conv_fprop_algo": "fft"})
    assert ms.get_context("device_target") == "GPU"
    assert ms.get_context("conv_fprop_algo") == "fft"


def test_the_default_device_is_the_accelerator_that_is_here() -> None:
    target = "GPU" if "cuda" in devices.here() else "Ascend" if "ascend" in devices.here() else "CPU"
    assert ms.get_current_device().device_target == ms.get_context("device_target") == target


def test_device_counts() -> None:
    kinds = {"cpu": ms.device_context.cpu, "cuda": ms.device_context.gpu, "ascend": ms.device_context.ascend}
    for device, kind in kinds.items():
        assert kind.is_available() is (device in devices.here())
        if kind.is_available():
            assert kind.device_count() >= 1
        else:
            with pytest.raises(RuntimeError, match="no such device"):
                kind.device_count()


# --- seeds ------------------------------------------------------------------------------------------------------------


def test_seeds() -> None:
    assert ms.get_seed() is None
    drawn = []
    for _ in range(2):
        ms.set_seed(7)
        drawn.append((random.random(), torch.rand(2).tolist()))
    assert drawn[0] == drawn[1]
    assert ms.get_seed() == msctx.get_context("seed") == 7


def test_wrong_seeds() -> None:
    rows: list[tuple[type[Exception], list[Any]]] = [(TypeError, ["1", 1.0, True, None]), (ValueError, [-1, 2**32])]
    for kind, wrong in rows:
        for seed in wrong:
            with pytest.raises(kind):
                ms.set_seed(seed)
    assert ms.get_seed() is None


# --- what is not carried out ------------------------------------------------------------------------------------------


NOT_CARRIED_OUT = (
    "device_context.ascend.op_tuning.aclnn_cache",
    "device_context.ascend.op_debug.debug_option",
    "device_context.ascend.op_debug.aclinit_config",
    "runtime.set_cpu_affinity",
    "runtime.set_kernel_launch_group",
    "runtime.set_kernel_launch_capture",
    "runtime.memory_replay",
    "runtime.communication_stream",
)


def test_what_is_not_carried_out_raises() -> None:
    assert issubclass(NotCarriedOut, NotImplementedError)
    assert issubclass(NotCarriedOut, MsctxError)
    for name in NOT_CARRIED_OUT:
        with pytest.raises(NotCarriedOut, match=rf"ms\.{name}\(\) is not carried out"):
            function(name)(True)

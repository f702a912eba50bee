"""ms.set_context and ms.get_context: values, exceptions, forms and rules, drawn from a table that is MindSpore's."""

import os
import re
import stat
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import msctx
import msctx.mindspore as ms
from msctx import notices
from msctx.base import BASE
from msctx.errors import DeviceError, MsctxWarning, OptionError, StrictError
from msctx.mindspore import state
from msctx.mindspore.errors import OptionPathError, OptionRuntimeError, OptionTypeError
from msctx.mindspore.keys import FLAT, GROUPS, KEYS

THREADS = min(os.cpu_count() or 1, 30)


class Case(NamedTuple):
    """A key: values that pass, with what get_context returns then; values that do not, by what is raised; None's exception."""

    good: list[tuple[Any, Any]]
    unset: Any
    none: type[Exception]
    types: list[Any] = []
    values: list[Any] = []
    runtime: list[Any] = []
    target: str = ""
    """One on which it is taken, where that is not so on all."""
    off: str = ""
    """One on which it is not."""


def switch(unset: bool, target: str = "", off: str = "") -> Case:
    return Case([(True, True), (False, False)], unset, RuntimeError, types=[1, 0, "True", 1.0, []], target=target, off=off)


CASES = {
    "device_target": Case(
        [("CPU", "CPU"), ("GPU", "GPU"), ("Ascend", "Ascend"), ("Davinci", "Ascend")],
        state.default_target(),
        ValueError,
        types=[1, True, ["CPU"]],
        values=["cpu", "gpu", "ascend", "CUDA", "", " CPU"],
    ),
    "device_id": Case([(0, 0), (4095, 4095), (True, 1)], 0, TypeError, types=["0", 1.0, [0]], values=[-1, 4096, 10**30]),
    "max_device_memory": Case(
        [("3GB", 3.0), ("3.5GB", 3.5), ("3.GB", 3.0), ("0.5GB", 0.5), ("1024GB", 1024.0), ("3.7GB", 3.7)],
        1024.0,
        TypeError,
        types=[3, True, 3.5, b"3GB"],
        values=["3gb", "3.5G", "3 GB", "3", "", "0GB", "0.GB", "0.0GB", "-3GB", "1e3GB", "3GBx", "4GiB", "512MB", "03GB"],
        target="GPU",
        off="CPU",
    ),
    "variable_memory_max_size": Case(
        [("3GB", "3 * 1024 * 1024 * 1024"), ("31GB", "31 * 1024 * 1024 * 1024")],
        "0",
        TypeError,
        types=[3, True],
        values=["32GB", "3.5GB", "3.GB", "0GB", "1G", "3gb"],
        target="Ascend",
        off="GPU",
    ),
    "mempool_block_size": Case(
        [("1GB", 1.0), ("2.5GB", 2.5)],
        1.0,
        TypeError,
        types=[1, False],
        values=["0.5GB", "0.99GB", "1gb", "1G"],
        target="Ascend",
        off="CPU",
    ),
    "op_timeout": Case(
        [(0, 0), (900, 900), (True, 1), (2**32 - 1, 2**32 - 1)], 900, TypeError, ["1", 1.5], [-1], runtime=[2**32]
    ),
    "save_graphs": Case(
        [(0, 0), (1, 1), (2, 2), (3, 3), (True, 2), (False, 0), (-1, 0)], 0, TypeError, ["1", 1.0, [1]], values=[4, 10**9]
    ),
    "deterministic": Case(
        [("ON", "ON"), ("OFF", "OFF")], "OFF", ValueError, types=[True, 1, 0], values=["on", "On", "off", "", "True", "1"]
    ),
    "precompile_only": switch(False),
    "reserve_class_name_in_scope": switch(True)._replace(none=ValueError),
    "pynative_synchronize": switch(False),
    "debug_level": Case(
        [(0, 0), (1, 1), (True, 1), (ms.context.DEBUG, 1)], 0, ValueError, types=["DEBUG", 1.0], values=[2, -1]
    ),
    "mode": Case([(0, 0), (1, 1), (True, 1), (ms.GRAPH_MODE, 0)], 1, ValueError, types=["GRAPH_MODE", 1.0], values=[2, -1]),
    "enable_graph_kernel": switch(False),
    "graph_kernel_flags": Case(
        [("", ""), ("--opt_level=2", "--opt_level=2"), ("--dump_as_text", "--dump_as_text")], "", RuntimeError, types=[2, True]
    ),
    "enable_reduce_precision": switch(True, target="Ascend", off="CPU"),
    "aoe_tune_mode": Case(
        [("online", "online"), ("offline", "offline")], "", ValueError, types=[1, True], values=["ONLINE", "", "both"]
    ),
    "aoe_config": Case(
        [({"job_type": "1"}, {"job_type": "1"}), ({"job_type": "2"}, {"job_type": "2"}), ({}, {})],
        {},
        TypeError,
        types=["1", 1, ["job_type"]],
        values=[{"job_type": 1}, {"job_type": "3"}, {"job": "1"}, {"job_type": None}],
    ),
    "check_bprop": switch(False),
    "max_call_depth": Case([(1, 1), (2000, 2000)], 1000, TypeError, ["1", 1.0], values=[0, -1], runtime=[2**32]),
    "grad_for_scalar": switch(False),
    "enable_compile_cache": switch(False)._replace(unset=None, none=TypeError),
    "compile_cache_path": Case([("cache", "cache")], "", RuntimeError, runtime=[1, True, ["cache"]]),
    "inter_op_parallel_num": Case([(0, 0), (4, 4), (True, 1)], 0, TypeError, types=["1", 1.0], values=[-1], runtime=[2**32]),
    "runtime_num_threads": Case([(0, 0), (2, 2), (True, 1)], THREADS, TypeError, ["1", 1.0], values=[-1], runtime=[2**32]),
    "disable_format_transform": switch(False, target="GPU", off="Ascend"),
    "support_binary": Case([(True, True), (False, False)], False, TypeError, types=[1, "True"]),
    "memory_optimize_level": Case([("O0", 0), ("O1", 1)], 0, ValueError, values=["o1", "0", 0, 1, True, "O2", ["O0"]]),
    "memory_offload": Case([("ON", True), ("OFF", False)], False, ValueError, values=["on", 1, True, "", {}]),
    "jit_syntax_level": Case(
        [(0, 0), (1, 1), (2, 2), (True, 1), (ms.LAX, 2), (ms.STRICT, 0)], 2, ValueError, types=["STRICT", 1.0], values=[3, -1]
    ),
    "gpu_config": Case(
        [({"conv_fprop_algo": "precomp_gemm"}, {"conv_fprop_algo": "precomp_gemm"}), ({}, {})],
        {},
        TypeError,
        types=["conv", ["conv_fprop_algo"]],
        values=[{"conv_algo": "normal"}, {1: 2}],
        target="GPU",
        off="CPU",
    ),
    "ascend_config": Case(
        [({"jit_compile": True}, {"jit_compile": True}), ({}, {})],
        {},
        TypeError,
        types=["precision", 1],
        values=[{"precision": "force_fp16"}, {1: 2}, {None: None}],
        target="Ascend",
        off="GPU",
    ),
}
FILES = {"save_graphs_path", "print_file_path", "env_config_path"}
UNHELD = {
    "enable_dump": (True, [1, "True"], []),
    "save_dump_path": ("dumps", [1], []),
    "enable_sparse": (True, [], []),
    "auto_tune_mode": ("NO_TUNE", [], []),
    "enable_auto_mixed_precision": (True, [1], []),
    "jit_config": ({"jit_level": "O1"}, ["O1"], [{"jit_level": ""}, {"level": "O1"}]),
    "exec_order": ("bfs", [], ["BFS", 1]),
}
"""Key → what is taken and dropped, wrong types, wrong values."""

GPU_ALGORITHMS = {
    "conv_fprop_algo": "normal performance implicit_gemm precomp_gemm gemm direct fft fft_tiling winograd winograd_nonfused",
    "conv_dgrad_algo": "normal performance algo_0 algo_1 fft fft_tiling winograd winograd_nonfused",
    "conv_wgrad_algo": "normal performance algo_0 algo_1 algo_3 fft fft_tiling winograd_nonfused",
}
PRECISION_MODES = (
    "force_fp16 allow_fp32_to_fp16 allow_mix_precision must_keep_origin_dtype force_fp32 allow_fp32_to_bf16 "
    "allow_mix_precision_fp16 allow_mix_precision_bf16"
)


class Inner(NamedTuple):
    """A key of a dictionary: values that pass, what its flat name shows of them, and values that do not."""

    good: list[tuple[Any, Any]]
    unset: Any
    types: list[Any] = []
    values: list[Any] = []
    runtime: list[Any] = []


def words(text: str, unset: str, values: list[Any]) -> Inner:
    return Inner([(word, word) for word in text.split()], unset, values=[*values, None, 1, True, "", []])


FLAG = Inner([(True, "1"), (False, "0"), (1, "1"), (0, "0")], "", values=[2, "True", None, "1", []])
TF32 = Inner([(True, True), (False, False)], True, values=[2, "True", None], runtime=[1, 0])

INNER = {
    ("gpu_config", "conv_fprop_algo"): words(
        GPU_ALGORITHMS["conv_fprop_algo"], "normal", ["implicit_precomp_gemm", "Winograd"]
    ),
    ("gpu_config", "conv_dgrad_algo"): words(GPU_ALGORITHMS["conv_dgrad_algo"], "normal", ["algo_3", "gemm"]),
    ("gpu_config", "conv_wgrad_algo"): words(GPU_ALGORITHMS["conv_wgrad_algo"], "normal", ["winograd", "reference"]),
    ("gpu_config", "conv_allow_tf32"): TF32,
    ("gpu_config", "matmul_allow_tf32"): TF32._replace(unset=False),
    ("aoe_config", "job_type"): Inner([("1", "1"), ("2", "2")], "2", values=[1, "3", None]),
    ("ascend_config", "precision_mode"): words(PRECISION_MODES, "", ["cube_fp16in_fp32out", "force_FP16", 2]),
    ("ascend_config", "jit_compile"): FLAG._replace(values=[2, "xxx", "true", "auto", None]),
    ("ascend_config", "atomic_clean_policy"): Inner(
        [(0, "0"), (1, "1"), (True, "1"), (False, "0")], "", values=[3, "1", "xxx", None]
    ),
    ("ascend_config", "matmul_allow_hf32"): FLAG,
    ("ascend_config", "conv_allow_hf32"): FLAG,
    ("ascend_config", "exception_dump"): Inner([("0", "0"), ("1", "1"), ("2", "2")], "2", values=[1, "10", True, None]),
    ("ascend_config", "op_precision_mode"): Inner([], "", types=[2, None, []], values=["./nothing_there.ini"]),
    ("ascend_config", "ge_options"): Inner(
        [
            ({"global": {"ge.x": "1"}}, '{"global": {"ge.x": "1"}}'),
            ({"session": {"ge.y": "a"}}, '{"session": {"ge.y": "a"}}'),
        ],
        "",
        types=["x", 2, None, {"global": 1}, {"global": {1: ""}}, {"global": {"x": 0}}, {"session": {"x": None}}],
        values=[{"x": 0}, {"Global": {}}],
    ),
    ("ascend_config", "host_scheduling_max_threshold"): Inner([(0, "0"), (20, "20")], "", types=["1", 1.0, None]),
    ("ascend_config", "parallel_speed_up_json_path"): Inner([], ValueError, types=[None, 1], values=["./nothing_there.json"]),
    ("ascend_config", "op_debug_option"): Inner([], ValueError, types=[2, None], values=["xxx"]),
    ("ascend_config", "hccl_watchdog"): Inner([], ValueError, types=[2, "on"]),
    ("ascend_config", "topo_order"): Inner([], ValueError, types=["dfs", {1: "dfs"}], values=[{"graph": "x"}]),
}
TARGET_OF = {"gpu_config": "GPU", "ascend_config": "Ascend", "aoe_config": "CPU"}


def changes() -> int:
    return BASE.version


def set_target(key: str) -> None:
    if CASES[key].target:
        ms.set_context(device_target=CASES[key].target)


OURS = {TypeError: OptionTypeError, ValueError: OptionError, RuntimeError: OptionRuntimeError}
"""MindSpore's exception → ours."""


def test_the_table_has_every_key() -> None:
    assert {*CASES, *FILES, *UNHELD} == {*KEYS}
    assert {*INNER} == {(group, key) for group, keys in GROUPS.items() for key in keys}


# --- each key ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "given", "shown"), [(k, *pair) for k, c in CASES.items() for pair in c.good])
def test_a_good_value_shows_in_mindspores_form(key: str, given: Any, shown: Any) -> None:
    set_target(key)
    ms.set_context(**{key: given})
    found = ms.get_context(key)
    assert found == shown
    assert type(found) is type(shown)


@pytest.mark.parametrize("key", CASES)
def test_unset_is_mindspores_default(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DEVICE_ID", raising=False)
    set_target(key)
    found = ms.get_context(key)
    assert found == CASES[key].unset
    assert type(found) is type(CASES[key].unset)


@pytest.mark.parametrize(
    ("key", "given", "kind"),
    [
        (key, value, kind)
        for key, case in CASES.items()
        for kind, values in ((TypeError, case.types), (ValueError, case.values), (RuntimeError, case.runtime))
        for value in values
    ],
)
def test_a_wrong_value_is_mindspores_exception(key: str, given: Any, kind: type[Exception]) -> None:
    set_target(key)
    before = changes()
    with pytest.raises(kind) as caught:
        ms.set_context(**{key: given})
    assert type(caught.value) is OURS[kind]
    assert key in str(caught.value)
    assert changes() == before


@pytest.mark.parametrize("key", CASES)
def test_none_passes_the_decorator_and_fails_in_the_setter(key: str) -> None:
    set_target(key)
    with pytest.raises(CASES[key].none) as caught:
        ms.set_context(**{key: None})
    assert type(caught.value) is OURS[CASES[key].none]


@pytest.mark.parametrize("key", [key for key, case in CASES.items() if case.off])
def test_a_key_of_another_target_is_skipped_with_a_warning(key: str) -> None:
    case = CASES[key]
    ms.set_context(device_target=case.off)
    for value in [case.good[0][0], *case.values, None]:
        notices.forget()
        with pytest.warns(MsctxWarning, match=f"{key}.* alone, and that is {case.off}"):
            ms.set_context(**{key: value})
    with pytest.raises(TypeError):
        ms.set_context(**{key: case.types[0]})
    with pytest.warns(MsctxWarning, match=f"{key}.* alone, and that is {case.off}"):
        assert ms.get_context(key) == case.unset
    assert set(msctx.current().settings) == {"device_target"}


@pytest.mark.parametrize("key", [key for key, case in CASES.items() if case.off])
def test_what_was_set_shows_on_another_target_too(key: str) -> None:
    set_target(key)
    ms.set_context(**{key: CASES[key].good[0][0]})
    ms.set_context(device_target=CASES[key].off)
    assert ms.get_context(key) == CASES[key].good[0][1]


@pytest.mark.parametrize(
    ("key", "given", "kind"),
    [
        ("mode", "GRAPH_MODE", ValueError),
        ("mode", 1.0, RuntimeError),
        ("device_target", 123, ValueError),
        ("device_id", "cpu", TypeError),
        ("device_id", 1.5, RuntimeError),
        ("save_graphs", "1", TypeError),
        ("save_graphs_path", 1, ValueError),
        ("deterministic", 1, ValueError),
        ("precompile_only", "yes", RuntimeError),
        ("reserve_class_name_in_scope", 1, ValueError),
        ("enable_compile_cache", "x", ValueError),
        ("max_call_depth", "x", TypeError),
        ("aoe_tune_mode", 1, ValueError),
        ("graph_kernel_flags", 1, RuntimeError),
        ("print_file_path", 1, TypeError),
        ("jit_syntax_level", "STRICT", ValueError),
        ("jit_syntax_level", 1.0, RuntimeError),
        ("support_binary", 1, TypeError),
    ],
)
def test_without_the_decorator_the_setters_decide(key: str, given: Any, kind: type[Exception]) -> None:
    ms.set_context(device_target="Ascend")
    with pytest.raises(kind) as caught:
        ms.set_context.__wrapped__(**{key: given})
    assert type(caught.value) is OURS[kind]


def test_without_the_decorator_good_values_pass() -> None:
    ms.set_context(device_target="GPU")
    ms.set_context.__wrapped__(max_device_memory="3GB", device_id=0)
    assert ms.get_context("max_device_memory") == 3.0


@pytest.mark.parametrize("key", UNHELD)
def test_what_mindspore_drops_or_msctx_has_not_is_told_and_dropped(key: str) -> None:
    good, types, values = UNHELD[key]
    with pytest.warns(MsctxWarning, match=key):
        ms.set_context(**{key: good})
    assert not msctx.current().settings
    for kind, wrong in ((TypeError, types), (ValueError, values)):
        for value in wrong:
            with pytest.raises(kind):
                ms.set_context(**{key: value})


# --- the dictionaries -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "key", "given", "flat"), [(*name, *pair) for name, case in INNER.items() for pair in case.good]
)
def test_a_good_value_in_a_dictionary(group: str, key: str, given: Any, flat: Any) -> None:
    ms.set_context(device_target=TARGET_OF[group])
    ms.set_context(**{group: {key: given}})
    assert ms.get_context(group) == {key: given}
    name = "aoe_job_type" if key == "job_type" else key
    assert ms.get_context(name) == flat
    assert type(ms.get_context(name)) is type(flat)


@pytest.mark.parametrize(
    ("group", "key", "given", "kind"),
    [
        (*name, value, kind)
        for name, case in INNER.items()
        for kind, values in ((TypeError, case.types), (ValueError, case.values), (RuntimeError, case.runtime))
        for value in values
    ],
)
def test_a_wrong_value_in_a_dictionary(group: str, key: str, given: Any, kind: type[Exception]) -> None:
    ms.set_context(device_target=TARGET_OF[group])
    with pytest.raises(kind) as caught:
        ms.set_context(**{group: {key: given}})
    assert type(caught.value) is OURS[kind]
    assert f"{group}.{key}" in str(caught.value)
    assert not ms.get_context(group)


@pytest.mark.parametrize("name", FLAT)
def test_flat_names_of_dictionaries_can_only_be_read(name: str) -> None:
    group, key = FLAT[name]
    assert ms.get_context(name) == INNER[group, key].unset
    ms.set_context(device_target=TARGET_OF[group])
    with pytest.raises(ValueError, match=f"takes it in {group} alone"):
        ms.set_context(**{name: INNER[group, key].good[0][0] if INNER[group, key].good else "x"})


def test_dictionaries_merge_key_by_key() -> None:
    ms.set_context(device_target="GPU", gpu_config={"conv_fprop_algo": "fft"})
    ms.set_context(gpu_config={"conv_dgrad_algo": "algo_1"})
    assert ms.get_context("gpu_config") == {"conv_fprop_algo": "fft", "conv_dgrad_algo": "algo_1"}


def test_the_word_of_the_documentation_is_refused_with_mindspores_own() -> None:
    with pytest.raises(ValueError, match="MindSpore's word for it is precomp_gemm"):
        ms.set_context(device_target="GPU", gpu_config={"conv_fprop_algo": "implicit_precomp_gemm"})


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["modex", "precison_mode", "_graph_memory_max_size", "conv_allow_tf32", "seed", "preset", "cpu_config"]
)
def test_unknown_keys_are_value_errors(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        ms.set_context(**{name: 1})


@pytest.mark.parametrize("name", ["cpu_config", "session", "atc", "preset", "seed", "strict", "device_context"])
def test_keys_of_msctx_are_told_from_unknown_ones(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: MindSpore has no such key; msctx.set_context takes it"):
        ms.set_context(**{name: {}})


@pytest.mark.parametrize("name", ["modex", "seed", "enable_dump", "save_dump_path", "parallel_speed_up_json_path", "_x"])
def test_unknown_names_of_get_context_are_value_errors(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        ms.get_context(name)


def test_get_context_takes_names_alone() -> None:
    with pytest.raises(TypeError, match="5 is not the name"):
        ms.get_context(5)  # type: ignore[arg-type]
    assert ms.get_context(attr_key="mode") == 1


def test_a_mistyped_key_gets_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean deterministic"):
        ms.set_context(determinstic="ON")


@pytest.mark.parametrize(
    ("name", "value"), [("enable_task_opt", False), ("compute_communicate_fusion_level", 0), ("jit_level", "")]
)
def test_names_that_only_get_context_has(name: str, value: Any) -> None:
    assert ms.get_context(name) == value


# --- where msctx takes less than MindSpore -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "given", "taken"),
    [
        ("runtime_num_threads", 1025, 1024),
        ("runtime_num_threads", 2**32 - 1, 1024),
        ("inter_op_parallel_num", 1025, 1024),
        ("max_call_depth", 2**31, 2**31 - 1),
        ("max_call_depth", 2**32 - 1, 2**31 - 1),
        ("host_scheduling_max_threshold", True, 1),
        ("host_scheduling_max_threshold", False, 0),
        ("host_scheduling_max_threshold", -5, 0),
        ("host_scheduling_max_threshold", 2**70, 2**63 - 1),
    ],
)
def test_what_msctx_makes_of_a_value_is_told_once(key: str, given: Any, taken: int) -> None:
    is_inner = key == "host_scheduling_max_threshold"
    options: dict[str, Any] = {"ascend_config": {key: given}} if is_inner else {key: given}
    ms.set_context(device_target="Ascend")
    with pytest.warns(MsctxWarning, match=f"{key}: {given} is .*{taken}"):
        ms.set_context(**options)
    with warnings.catch_warnings():
        warnings.simplefilter("error", MsctxWarning)
        ms.set_context(**options)
    assert msctx.get_context(key) == taken
    assert ms.get_context(key) == (str(taken) if is_inner else taken)


@pytest.mark.parametrize("key", ["runtime_num_threads", "inter_op_parallel_num", "max_call_depth"])
def test_what_is_allowed_is_what_is_taken(key: str) -> None:
    for wrong, kind in ((2**32, RuntimeError), (-1, ValueError)):
        with pytest.raises(kind, match=r"to 4294967295; what is more than \d+ is taken for"):
            ms.set_context(**{key: wrong})


def test_an_empty_compile_cache_path_takes_back_what_was_set() -> None:
    with pytest.warns(MsctxWarning, match="compile_cache_path: empty text takes back"):
        ms.set_context(compile_cache_path="")
    assert not msctx.current().settings
    ms.set_context(compile_cache_path="cache", check_bprop=True)
    ms.set_context(compile_cache_path="", grad_for_scalar=True)
    assert ms.get_context("compile_cache_path") == ""
    assert msctx.get_context() == {"check_bprop": True, "grad_for_scalar": True}
    with msctx.context(compile_cache_path="other"):
        assert ms.get_context("compile_cache_path") == "other"


STRICTER = [
    # (key of ascend_config, value or what the file holds, what the message says); MindSpore leaves these to CANN
    ("op_precision_mode", "garbage", "garbage"),
    ("op_precision_mode", "[ByOpType]\nMatMul=medium\n", "medium"),
    ("op_precision_mode", "[ByColour]\nMatMul=high_precision\n", "ByColour"),
    ("parallel_speed_up_json_path", '{"compute_communicate_fusion_level": 4}', "4 is "),
    ("parallel_speed_up_json_path", '{"compute_communicate_fusion_level": -1}', "-1 is "),
    ("ge_options", {"session": {"ge.exec.precision_mode": "fp8"}}, "fp8"),
    ("ge_options", {"session": {"ge.exec.hostSchedulingMaxThreshold": "-1"}}, "-1 is out of range"),
    ("ge_options", {"global": {"ge.exec.hostSchedulingMaxThreshold": "many"}}, "many"),
]


@pytest.mark.parametrize(("key", "given", "text"), STRICTER)
def test_contents_that_mindspore_does_not_look_at_are_value_errors(key: str, given: Any, text: str, tmp_path: Path) -> None:
    """Decided so: what msctx cannot read it cannot carry out, and a script should hear of it where it says it."""
    ms.set_context(device_target="Ascend")
    if isinstance(given, str):
        path = tmp_path / "content"
        path.write_text(given)
        given = str(path)
    with pytest.raises(ValueError, match=text):
        ms.set_context(ascend_config={key: given})
    assert not ms.get_context("ascend_config")


# --- what messages say ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("variable_memory_max_size", "3.5GB", "decimals are not taken"),
        ("variable_memory_max_size", "3.GB", "decimals are not taken"),
        ("variable_memory_max_size", "3584MB", "not a size"),
        ("max_device_memory", "0.00GB", "not more than zero"),
        ("mempool_block_size", "512MB", "not a size"),
    ],
)
def test_a_hint_never_repeats_what_is_refused(key: str, value: str, text: str) -> None:
    ms.set_context(device_target="Ascend")
    with pytest.raises(ValueError, match=text) as caught:
        ms.set_context(**{key: value})
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("max_device_memory", "512MB", "0.5GB"),
        ("mempool_block_size", "2 gib", "2GB"),
        ("variable_memory_max_size", "3G", "3GB"),
    ],
)
def test_a_size_in_another_form_gets_mindspores(key: str, value: str, hint: str) -> None:
    ms.set_context(device_target="Ascend")
    with pytest.raises(ValueError, match=f'did you mean "{hint}"'):
        ms.set_context(**{key: value})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"mode": "x"}, "'x' is a str\n"),
        ({"check_bprop": 1}, "1 is an int\n"),
        ({"gpu_config": 1.5}, "1.5 is a float\n"),
        ({"check_bprop": None}, "None is not a value\n"),
        ({"device_id": None}, "None is not a value\n"),
    ],
)
def test_articles(options: dict[str, Any], text: str) -> None:
    ms.set_context(device_target="GPU")
    with pytest.raises((TypeError, RuntimeError), match=text):
        ms.set_context(**options)


@pytest.mark.parametrize("options", [{"enable_dump": True}, {"save_dump_path": "dumps"}])
def test_what_does_that_now_can_be_written_so(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.warns(MsctxWarning) as told:
        ms.set_context(**options)
    assert not msctx.get_context()
    (text,) = (str(w.message) for w in told)
    call = "msctx.set_context(session={'enable_dump': True, 'dump_path': DIR})"
    assert text == f"{next(iter(options))}: MindSpore drops it, and so does msctx; {call} does that now"
    eval(call, {"msctx": msctx, "DIR": str(tmp_path)})
    assert msctx.get_context("session.enable_dump") is True


# --- all or nothing ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [{"mode": "x"}, {"mode": 2}, {"op_timeout": 2**32}, {"print_file_path": "/"}, {"foo": 1}, {"max_call_depth": 2**32}],
)
def test_an_error_changes_nothing(wrong: dict[str, Any], tmp_path: Path) -> None:
    ms.set_context(device_target="Ascend", check_bprop=True)
    before = msctx.get_context(origin=True)
    graphs = tmp_path / "deep" / "graphs"
    options = {"device_target": "CPU", "check_bprop": False, "save_graphs_path": str(graphs), "deterministic": "ON"}
    if "print_file_path" in wrong:
        del options["device_target"]
    with pytest.raises((TypeError, ValueError, RuntimeError, OSError)):
        ms.set_context(**options, **wrong)
    assert msctx.get_context(origin=True) == before
    assert not graphs.parent.exists()


def test_the_message_tells_everything_that_is_wrong() -> None:
    with pytest.raises(TypeError) as caught:
        ms.set_context(deterministic="on", foo=1, mode="x")
    for part in ("mode: 'x' is a str", "did you mean 'ON'", "foo: there is no such key", "3 problems; nothing was changed"):
        assert part in str(caught.value)
    assert "test_mindspore_set_context.py" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"deterministic": "on", "mode": "x"}, TypeError),  # types before everything else
        ({"op_timeout": 2**32, "device_target": "gpu"}, ValueError),  # then device_target
        ({"op_timeout": 2**32, "deterministic": "on"}, RuntimeError),  # then the order of the call
        ({"deterministic": "on", "op_timeout": 2**32}, ValueError),
        ({"print_file_path": "/", "deterministic": "on", "device_target": "Ascend"}, OSError),
    ],
)
def test_the_first_mistake_in_mindspores_order_decides(options: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        ms.set_context(**options)


def test_the_target_of_the_same_call_counts() -> None:
    ms.set_context(gpu_config={"conv_allow_tf32": False}, device_target="GPU")
    assert ms.get_context("gpu_config") == {"conv_allow_tf32": False}
    with pytest.warns(MsctxWarning, match="gpu_config.*that is CPU"):
        ms.set_context(gpu_config={"conv_allow_tf32": True}, device_target="CPU")
    assert ms.get_context("gpu_config") == {"conv_allow_tf32": False}


def test_mempool_block_size_in_graph_mode_is_skipped() -> None:
    ms.set_context(device_target="GPU", mode=ms.GRAPH_MODE)
    with pytest.warns(MsctxWarning, match="GRAPH_MODE"):
        ms.set_context(mempool_block_size="nonsense")
    ms.set_context(mode=ms.PYNATIVE_MODE, mempool_block_size="2GB")
    assert ms.get_context("mempool_block_size") == 2.0


def test_strict_refuses_what_would_be_dropped() -> None:
    msctx.set_context(strict=True)
    for options in ({"max_device_memory": "4GB", "device_target": "CPU"}, {"enable_sparse": True}):
        with pytest.raises(StrictError, match=r"max_device_memory|enable_sparse"):
            ms.set_context(**options)
    assert ms.get_context("max_device_memory") == 1024.0


# --- what MindSpore remembers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "one", "same", "other"),
    [
        ("device_id", 1, 1, 2),
        ("max_device_memory", "4GB", "4.0GB", "5GB"),
        ("mempool_block_size", "4GB", "4.0GB", "5GB"),
        ("variable_memory_max_size", "4GB", "4GB", "5GB"),
    ],
)
def test_what_was_read_cannot_be_changed(key: str, one: Any, same: Any, other: Any) -> None:
    ms.set_context(device_target="Ascend", **{key: other})
    ms.set_context(**{key: one})  # not read yet
    shown = ms.get_context(key)
    ms.set_context(**{key: same})
    with pytest.raises(TypeError, match="cannot be changed any more"):
        ms.set_context(**{key: other})
    assert ms.get_context(key) == shown
    msctx.reset_context()
    ms.set_context(device_target="Ascend", **{key: other})
    assert ms.get_context(key) != shown


def test_the_default_counts_as_read_too() -> None:
    ms.set_context(device_target="GPU")
    assert ms.get_context("max_device_memory") == 1024.0
    ms.set_context(max_device_memory="1024GB")
    with pytest.raises(TypeError):
        ms.set_context(max_device_memory="4GB")


# --- values of msctx --------------------------------------------------------------------------------------------------


def test_it_is_msctxs_state() -> None:
    ms.set_context(deterministic="ON")
    assert msctx.get_context("deterministic", origin=True).origin.startswith("ms.set_context at test_mindspore_set_context.py:")
    with msctx.context(deterministic="OFF"):
        assert ms.get_context("deterministic") == "OFF"
    msctx.set_context(max_device_memory="512MB", conv_fprop_algo="implicit_precomp_gemm")
    assert ms.get_context("max_device_memory") == 0.5
    assert ms.get_context("conv_fprop_algo") == "precomp_gemm"
    msctx.reset_context()
    assert ms.get_context("deterministic") == "OFF"


def test_a_group_of_another_device_does_not_show() -> None:
    msctx.set_context(cpu_config={"conv_fprop_algo": "fft"}, jit_compile="auto")
    assert ms.get_context("conv_fprop_algo") == "normal"
    assert ms.get_context("jit_compile") == ""


def test_a_value_that_yields_to_another_option_still_shows() -> None:
    ms.set_context(enable_graph_kernel=True, graph_kernel_flags="--opt_level=0")
    assert ms.get_context("enable_graph_kernel") is True


def test_a_target_that_is_not_here_is_planned(absent: str) -> None:
    with pytest.warns(MsctxWarning, match="no such device here; what is set is planned"):
        ms.set_context(device_target=absent, deterministic="ON")
    assert ms.get_context("device_target") == absent
    plan = msctx.current().plan
    assert plan.missing
    assert plan.target == absent
    with pytest.raises(DeviceError), msctx.context(deterministic="ON"):
        pass
    import torch

    assert not torch.are_deterministic_algorithms_enabled()
    ms.set_context(device_target="CPU")
    assert torch.are_deterministic_algorithms_enabled()
    with msctx.context(deterministic="OFF"):
        assert not torch.are_deterministic_algorithms_enabled()


def test_memory_optimize_level_follows_the_target_until_it_is_set() -> None:
    ms.set_context(device_target="Ascend")
    assert ms.get_context("memory_optimize_level") == 1
    ms.set_context(device_target="CPU")
    assert ms.get_context("memory_optimize_level") == 0
    ms.set_context(memory_optimize_level="O0", device_target="Ascend")
    assert ms.get_context("memory_optimize_level") == 0


def test_device_id_begins_with_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEVICE_ID", "3")
    assert ms.get_context("device_id") == 3
    monkeypatch.setenv("DEVICE_ID", "x")
    assert ms.get_context("device_id") == 0


def test_the_old_name_of_ascend_is_told() -> None:
    with pytest.warns(MsctxWarning, match="Davinci is an old name"):
        ms.set_context(device_target="Davinci")


# --- files ------------------------------------------------------------------------------------------------------------


def test_save_graphs_path_is_made_and_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert ms.get_context("save_graphs_path") == "."
    ms.set_context(save_graphs_path="a/b")
    assert ms.get_context("save_graphs_path") == os.path.realpath(tmp_path / "a" / "b")
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    ms.set_context(save_graphs_path="a")
    assert ms.get_context("save_graphs_path") == os.path.realpath(tmp_path / "a")


@pytest.mark.parametrize(
    ("value", "kind"), [("", ValueError), ("  ", ValueError), (1, TypeError), (None, ValueError), ("\0", ValueError)]
)
def test_save_graphs_path_must_be_a_path(value: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="save_graphs_path"):
        ms.set_context(save_graphs_path=value)


def test_save_graphs_path_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot be made"):
        ms.set_context(save_graphs_path=str(tmp_path / "file" / "graphs"))
    assert not msctx.current().settings


def test_print_file_path(tmp_path: Path) -> None:
    ms.set_context(device_target="Ascend")
    assert ms.get_context("print_file_path") == ""
    with pytest.raises(OSError, match="is a directory") as caught:
        ms.set_context(print_file_path=str(tmp_path))
    assert type(caught.value) is OptionPathError
    path = tmp_path / "prints.pb"
    ms.set_context(print_file_path=str(path))
    assert ms.get_context("print_file_path") == os.path.realpath(path)
    path.write_text("")
    ms.set_context(print_file_path=str(path))
    assert ms.get_context("print_file_path").startswith(f"{os.path.realpath(path)}.")
    for wrong in (1, None):
        with pytest.raises(TypeError):
            ms.set_context(print_file_path=wrong)


def test_print_file_path_when_every_name_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 7.5)
    for name in ("prints", "prints.7"):
        (tmp_path / name).write_text("")
    with pytest.raises(ValueError, match=r"prints\.7"):
        ms.set_context(device_target="Ascend", print_file_path=str(tmp_path / "prints"))


def test_env_config_path(tmp_path: Path) -> None:
    path = tmp_path / "env.json"
    assert ms.get_context("env_config_path") == ""
    with pytest.raises(ValueError, match="there is no file"):
        ms.set_context(env_config_path=str(path))
    path.write_text("{")
    with pytest.raises(ValueError, match=r"env\.json"):
        ms.set_context(env_config_path=str(path))
    path.write_text('{"rdr": {"enable": true, "mode": 2, "path": "/tmp"}, "sys": {"mem_reuse": false}}')
    ms.set_context(env_config_path=str(path))
    assert ms.get_context("env_config_path") == os.path.realpath(path)
    assert msctx.get_context("env_config_path.rdr.mode") == 2
    for wrong in (1, None):
        with pytest.raises(TypeError):
            ms.set_context(env_config_path=wrong)


RIGHT = {"env_config_path.rdr.mode": 2}
ENV_CONFIG = [
    # what the file holds, what is set of it, what is told of each part
    ('{"foo": 1, "rdr": {"mode": 2}}', RIGHT, ["env_config_path.foo: env_config_path has no such key"]),
    ('{"rdr": {"mode": 2, "enable": 1, "x": 0}}', RIGHT, ["rdr.enable: 1 is not a boolean", "rdr.x: .* has no such key"]),
    ('{"rdr": {"mode": 2}, "sys": 5}', RIGHT, ["env_config_path.sys: 5 is not a dictionary"]),
    ('{"rdr": {"mode": 2, "path": ""}}', RIGHT, ["env_config_path.rdr.path: the text is empty"]),
    ('{"rdr": {"mode": 3}}', {}, ["env_config_path.rdr.mode: 3 is not one of the values"]),
    ('{"rdr": {"mode": 1, "mode": 2}}', RIGHT, ["stands twice"]),
    ('{"rdr": {"mode": 2, "path": NaN}}', RIGHT, ["env_config_path.rdr.path: nan is not text"]),
    (
        '{"sys": {"mem_Reuse": true, "mem_reuse": false}}',
        {"env_config_path.sys.mem_reuse": False},
        ["sys.mem_Reuse: mem_reuse stands beside it"],
    ),
    ("[1]", {}, [r"env_config_path: \[1\] is not a dictionary"]),
]


@pytest.mark.parametrize(("text", "options", "told"), ENV_CONFIG)
def test_what_is_wrong_in_env_config_is_told_and_dropped(
    text: str, options: dict[str, Any], told: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "env.json"
    path.write_text(text)
    with pytest.warns(MsctxWarning) as warned:
        ms.set_context(env_config_path=str(path))
    for part in told:
        assert len([w for w in warned if re.search(part, str(w.message))]) == 1
    assert msctx.get_context() == options
    assert ms.get_context("env_config_path") == ""
    if "twice" in told[0]:  # nothing is dropped there
        return
    msctx.reset_context()
    msctx.set_context(strict=True)
    with pytest.raises(StrictError, match=told[0]):
        ms.set_context(env_config_path=str(path))


def test_an_env_config_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    one.write_text('{"rdr": {"enable": true, "mode": 1}}')
    other.write_text('{"rdr": {"mode": 2}, "foo": 1}')
    ms.set_context(env_config_path=str(one))
    assert msctx.get_context("env_config_path.rdr.enable") is True
    ms.set_context(env_config_path=str(other))
    assert msctx.get_context() == RIGHT


@pytest.mark.parametrize("content", [b"{", b"", b"{'rdr': 1}", b"\xff\xfe", b"[" * 100_000])
def test_an_env_config_that_is_no_json_is_a_value_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "env.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="env_config_path"):
        ms.set_context(env_config_path=str(path))
    assert not msctx.get_context()


def test_op_precision_mode(tmp_path: Path) -> None:
    ms.set_context(device_target="Ascend")
    path = tmp_path / "op.ini"
    path.write_text("[ByOpType]\nMatMul=high_precision\n")
    ms.set_context(ascend_config={"op_precision_mode": str(path)})
    assert ms.get_context("op_precision_mode") == str(path)
    with pytest.warns(MsctxWarning, match="is a directory"):
        ms.set_context(ascend_config={"op_precision_mode": str(tmp_path)})
    assert ms.get_context("ascend_config") == {"op_precision_mode": str(path)}


def test_parallel_speed_up_json_path(tmp_path: Path) -> None:
    ms.set_context(device_target="Ascend")
    path = tmp_path / "speed.json"
    path.write_text('{"enable_task_opt": true, "compute_communicate_fusion_level": 3}')
    ms.set_context(ascend_config={"parallel_speed_up_json_path": str(path)})
    assert ms.get_context("enable_task_opt") is True
    assert ms.get_context("compute_communicate_fusion_level") == 3
    assert ms.get_context("ascend_config") == {"parallel_speed_up_json_path": str(path)}
    for text in ('{"enable_everything": true}', '{"enable_task_opt": 1}', "[", '{"compute_communicate_fusion_level": "3"}'):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"speed\.json"):
            ms.set_context(ascend_config={"parallel_speed_up_json_path": str(path)})
    ms.set_context(ascend_config={"parallel_speed_up_json_path": ""})
    assert ms.get_context("ascend_config") == {"parallel_speed_up_json_path": ""}
    assert ms.get_context("enable_task_opt") is False


def test_flags_that_nobody_knows_are_told_and_dropped() -> None:
    flags = "--opt_level=2 --enable_expand_ops=MatMul --dump_as_text nonsense --opt_level=7"
    with pytest.warns(MsctxWarning) as told:
        ms.set_context(graph_kernel_flags=flags)
    assert ms.get_context("graph_kernel_flags") == "--opt_level=3 --dump_as_text"
    text = "\n".join(str(warning.message) for warning in told)
    for part in ("'--enable_expand_ops=MatMul' is dropped", "'nonsense' is dropped", "3 is taken", "stands twice"):
        assert part in text


# --- the module and its object ----------------------------------------------------------------------------------------


def test_the_object_is_made_at_the_first_use() -> None:
    assert ms.context.K_CONTEXT is None
    ms.set_context(mode=ms.PYNATIVE_MODE)
    first = ms.context.K_CONTEXT
    assert first is ms.context._context()
    ms.context.K_CONTEXT = None
    second = ms.context._context()
    assert second is not first
    assert second.mode == first.mode == ms.PYNATIVE_MODE


def test_the_object_has_mindspores_methods() -> None:
    context = ms.context._context()
    context.set_mode(ms.GRAPH_MODE)
    assert context.get_mode() == context.get_param("mode") == ms.GRAPH_MODE
    context.set_param("mode", ms.PYNATIVE_MODE)
    context.check_bprop = True
    assert ms.get_context("mode") == 1
    assert ms.get_context("check_bprop") is True
    with pytest.raises(ValueError, match="mode"):
        context.set_mode(2)
    context.enable_debug_runtime = False
    assert not hasattr(context, "nonsense")

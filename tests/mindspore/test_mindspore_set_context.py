"""ms.set_context and ms.get_context: keys, values, exceptions and forms, by a table; what is rejected changes nothing."""

import os
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import ANY

import pytest

import msctx
import msctx.mindspore as ms
from msctx.errors import DeviceError, MsctxWarning, OptionError, StrictError
from msctx.mindspore import keys_and_rules as keys
from msctx.mindspore.errors import OptionTypeError
from msctx.mindspore.keys_and_rules import FLAT, GROUPS, KEYS


class Case(NamedTuple):
    """A key: values that pass, with what get_context returns then; what it returns unset; wrong types; wrong values."""

    good: list[tuple[Any, Any]]
    unset: Any
    types: list[Any]
    values: list[Any] = []
    target: str = ""
    """One that accepts it, where that is not so on all."""
    off: str = ""
    """One on which it is not."""


def switch(unset: bool, target: str = "", off: str = "") -> Case:
    return Case([(True, True), (False, False)], unset, [1, 0, "True", 1.0, [], None], target=target, off=off)


NUMBERS: list[Any] = ["1", 1.5, None, []]
CASES = {
    "device_target": Case(
        [("CPU", "CPU"), ("GPU", "GPU"), ("Ascend", "Ascend"), ("Davinci", "Ascend")],
        keys.default_target(),
        [1, True, ["CPU"]],
        ["CUDA", "", " CPU"],
    ),
    "device_id": Case([(0, 0), (4095, 4095), (True, 1)], 0, NUMBERS, [-1, 4096]),
    "max_device_memory": Case(
        [("3GB", 3.0), ("3.5GB", 3.5), ("1024GB", 1024.0)], 1024.0, [3, None, b"3GB"], ["3", "", "0GB", "-3GB"], "GPU", "CPU"
    ),
    "variable_memory_max_size": Case([("3GB", "3 * 1024 * 1024 * 1024")], "0", [3, None], ["32GB", "0GB"], "Ascend", "GPU"),
    "mempool_block_size": Case([("1GB", 1.0), ("2.5GB", 2.5)], 1.0, [1, None], ["0.5GB"], "Ascend", "CPU"),
    "op_timeout": Case([(0, 0), (900, 900)], 900, NUMBERS, [-1]),
    "save_graphs": Case([(0, 0), (3, 3), (True, 2), (False, 0)], 0, ["1", 1.0, None], [4, -1]),
    "save_graphs_path": Case([("graphs", "graphs")], ".", [1, None], [""]),
    "deterministic": Case([("ON", "ON"), ("OFF", "OFF")], "OFF", [True, 0, None], ["on", "", "True"]),
    "print_file_path": Case([("prints", "prints")], "", [1, None], ["/"], "Ascend", "CPU"),
    "precompile_only": switch(False),
    "reserve_class_name_in_scope": switch(True),
    "pynative_synchronize": switch(False),
    "debug_level": Case([(0, 0), (ms.context.DEBUG, 1)], 0, NUMBERS, [2, -1]),
    "mode": Case([(0, 0), (1, 1), (True, 1), (ms.GRAPH_MODE, 0)], 1, ["GRAPH_MODE", 1.0, None], [2, -1]),
    "enable_graph_kernel": switch(False),
    "graph_kernel_flags": Case([("", ""), ("--opt_level=2", "--opt_level=2")], "", [2, None]),
    "enable_reduce_precision": switch(True, target="Ascend", off="CPU"),
    "aoe_tune_mode": Case([("online", "online"), ("offline", "offline")], "", [1, None], ["ONLINE", "both"]),
    "aoe_config": Case(
        [({"job_type": "1"}, {"job_type": "1"}), ({}, {})], {}, ["1", 1, None], [{"job_type": "3"}, {"job": "1"}]
    ),
    "check_bprop": switch(False),
    "max_call_depth": Case([(1, 1), (2000, 2000)], 1000, NUMBERS, [0, -1]),
    "grad_for_scalar": switch(False),
    "enable_compile_cache": switch(False)._replace(unset=None),
    "compile_cache_path": Case([("cache", "cache"), ("", "")], "", [1, None]),
    "inter_op_parallel_num": Case([(0, 0), (4, 4)], ANY, NUMBERS, [-1]),
    "runtime_num_threads": Case([(0, 0), (2, 2)], min(os.cpu_count() or 1, 30), NUMBERS, [-1]),
    "disable_format_transform": switch(False, target="GPU", off="Ascend"),
    "support_binary": switch(False),
    "memory_optimize_level": Case([("O0", 0), ("O1", 1)], 0, [0, True, None], ["0", "O2"]),
    "memory_offload": Case([("ON", keys.default_target() != "CPU"), ("OFF", False)], False, [1, True, {}], ["on", ""]),
    "jit_syntax_level": Case([(0, 0), (ms.LAX, 2)], 2, ["STRICT", 1.0, None], [3, -1]),
    "gpu_config": Case(
        [({"conv_fprop_algo": "precomp_gemm"}, {"conv_fprop_algo": "precomp_gemm"}), ({}, {})],
        {},
        ["conv", None],
        [{"conv_algo": "normal"}, {"conv_fprop_algo": "Winograd"}, {"conv_allow_tf32": "yes"}],
        "GPU",
        "CPU",
    ),
    "ascend_config": Case(
        [
            ({"jit_compile": True, "exception_dump": "1"}, {"jit_compile": True, "exception_dump": "1"}),
            ({"precision_mode": "force_fp16", "conv_allow_hf32": False, "atomic_clean_policy": 1},) * 2,
            ({"ge_options": {"global": {"ge.x": "1"}}, "topo_order": {"graph": "dfs"}, "hccl_watchdog": True}, {}),
        ],
        {},
        ["precision", 1],
        [{"precision": "force_fp16"}, {"op_precision_mode": "./nothing.ini"}, {"ge_options": {"x": 0}}],
        "Ascend",
        "GPU",
    ),
}
SKIPPED = {"enable_dump": True, "save_dump_path": "dumps", "enable_sparse": True, "auto_tune_mode": "NO_TUNE"}
SKIPPED |= {"enable_auto_mixed_precision": True, "jit_config": {"infer_boost": "on"}, "exec_order": "bfs"}


def set_target(key: str) -> None:
    if CASES[key].target:
        ms.set_context(device_target=CASES[key].target)


def test_the_table_has_every_key():
    assert {*CASES, "env_config_path"} == {key for key, row in KEYS.items() if not row.ignored}


@pytest.mark.parametrize("key", CASES)
def test_values_that_pass_and_their_forms(key):
    set_target(key)
    if key != "device_target":
        assert ms.get_context(key) == CASES[key].unset
    for value, shown in CASES[key].good:
        ms.set_context(**{key: value})
        found = ms.get_context(key)
        assert (type(found), found) == (type(shown), shown)
        msctx.reset_context()
        set_target(key)


@pytest.mark.parametrize("key", CASES)
def test_wrong_types_and_values(key):
    set_target(key)
    before = msctx.get_context()
    for kind, values in ((OptionTypeError, CASES[key].types), (OptionError, CASES[key].values)):
        for value in values:
            with pytest.raises(kind, match=key):
                ms.set_context(**{key: value})
            assert msctx.get_context() == before


@pytest.mark.parametrize("key", [key for key, case in CASES.items() if case.off])
def test_other_targets_skip_a_key_with_a_warning(key):
    case = CASES[key]
    with pytest.warns(MsctxWarning, match=f"{key}: .* and that is {case.off}: it is skipped"):
        ms.set_context(**{"device_target": case.off, key: case.good[0][0]})
    assert msctx.get_context() == {"device_target": case.off}
    ms.set_context(**{key: case.good[0][0], "device_target": case.target})
    assert ms.get_context(key) == case.good[0][1]


@pytest.mark.parametrize("key", SKIPPED)
def test_what_mindspore_ignores_or_msctx_has_no_option_for_is_reported(key):
    with pytest.warns(MsctxWarning, match=key):
        ms.set_context(**{key: SKIPPED[key]})
    assert not msctx.get_context()
    msctx.set_context(strict=True)
    with pytest.raises(StrictError, match=key):
        ms.set_context(**{key: SKIPPED[key]})


def test_the_level_of_jit_config_is_enable_graph_kernel():
    assert ms.get_context("jit_config") == {}
    with pytest.warns(MsctxWarning, match="jit_config.infer_boost"):
        ms.set_context(jit_level="O1", infer_boost="on")
    assert msctx.get_context() == {"enable_graph_kernel": True}
    assert ms.get_context("jit_config") == {"jit_level": "O1"}
    given = {"enable_graph_kernel": True, "jit_config": {"jit_level": "O0"}}
    for names in ([*given], [*given][::-1]):
        with pytest.warns(MsctxWarning, match="enable_graph_kernel in the same call wins"):
            ms.set_context(**{name: given[name] for name in names})
        assert msctx.get_context() == {"enable_graph_kernel": True}


@pytest.mark.parametrize("name", FLAT)
def test_get_context_knows_keys_of_dictionaries_by_their_flat_names(name):
    group, key = FLAT[name]
    assert ms.get_context(name) == GROUPS[group][key].default
    with pytest.raises(OptionError, match=f"MindSpore takes it in {group} alone"):
        ms.set_context(**{name: "x"})


def test_the_message_lists_everything_that_is_wrong_and_nothing_was_changed():
    ms.set_context(check_bprop=True)
    before = msctx.get_context(origin=True)
    with pytest.raises(TypeError) as caught:
        ms.set_context(deterministic="on", foo=1, mode="x", check_bprop=False, jit_config="O1")
    parts = ("mode: 'x' is of type str", "did you mean 'ON'", "foo: unknown key", "4 problems; nothing was changed")
    for part in (*parts, "jit_config: 'O1' is of type str"):
        assert part in str(caught.value)
    assert Path(__file__).name in str(caught.value)
    assert msctx.get_context(origin=True) == before


MESSAGES = [
    ({"graph_memory_max_size": "2GB"}, "deprecated and without effect; instead: max_device_memory"),
    ({"enable_profiling": True}, r"did you mean profiling_mode\?"),
    ({"jit_level": "O3"}, "jit_config.jit_level: 'O3' is not allowed"),
    ({"jit_config": {"jit_level": "O3"}, "enable_hccl": 1}, r"(?s)'O3' .*\n      allowed: O0, O1, O2\n.*hccl: unknown key\n"),
    ({"jit_config": {"jit_levl": "O1"}}, r"did you mean jit_level\?\n      allowed: jit_level, infer_boost"),
    ({"deterministic": "on"}, "allowed: ON, OFF\n"),
    ({"device_target": "CUDA"}, "'CUDA' is not allowed\n      allowed: CPU, GPU, Ascend\n"),
    ({"enable_parallel_optimizer": True}, "torch.distributed with DDP or FSDP"),
    ({"amp_level": "O2"}, "precision_mode=allow_mix_precision_fp16"),
]


@pytest.mark.parametrize(("given", "answer"), MESSAGES)
def test_the_message_says_what_to_set(given, answer):
    with pytest.raises(ValueError, match=answer):
        ms.set_context(**given)


def test_messages_distinguish_keys_of_msctx_from_unknown_ones():
    for name in ("cpu_config", "session", "preset", "seed"):
        with pytest.raises(ValueError, match=f"{name}: MindSpore has no such key; msctx.set_context takes it"):
            ms.set_context(**{name: {}})
    with pytest.raises(ValueError, match="did you mean deterministic"):
        ms.set_context(determinstic="ON")
    for name in ("modex", "seed", "enable_dump", "_x"):
        with pytest.raises(ValueError, match=name):
            ms.get_context(name)
    number: Any = 5
    with pytest.raises(TypeError, match="attr_key: 5 is of type int"):
        ms.get_context(number)


def test_files(tmp_path):
    ms.set_context(device_target="Ascend")
    (env := tmp_path / "env.json").write_text('{"rdr": {"enable": true, "mode": 2}}')
    (ini := tmp_path / "op.ini").write_text("[ByOpType]\nMatMul=high_precision\n")
    (speed := tmp_path / "speed.json").write_text('{"enable_task_opt": true}')
    ms.set_context(env_config_path=str(env), ascend_config={"op_precision_mode": str(ini)})
    ms.set_context(ascend_config={"parallel_speed_up_json_path": str(speed)})
    assert msctx.get_context("env_config_path.rdr.mode") == 2
    assert ms.get_context("env_config_path") == str(env)
    assert ms.get_context("ascend_config") == {"op_precision_mode": str(ini), "parallel_speed_up_json_path": str(speed)}
    for file in (env, speed):
        file.write_text('{"foo": 1}')
    for wrong in ({"env_config_path": str(env)}, {"ascend_config": {"parallel_speed_up_json_path": str(speed)}}):
        with pytest.raises(ValueError, match=r"\.json.*foo"):
            ms.set_context(**wrong)


def test_unknown_flags_are_reported_and_ignored():
    with pytest.warns(MsctxWarning, match="'--enable_expand_op=MatMul' is ignored"):
        ms.set_context(graph_kernel_flags="--opt_level=2 --enable_expand_op=MatMul --dump_as_text")
    assert ms.get_context("graph_kernel_flags") == "--opt_level=2 --dump_as_text"


def test_flags_that_are_all_refused_are_not_in_force():
    with pytest.warns(MsctxWarning, match="graph_kernel_flags='--enable_low_precision=True' on cpu: refused"):
        ms.set_context(graph_kernel_flags="--enable_low_precision=True")
    assert ms.get_context("graph_kernel_flags") == ""


def test_it_is_msctxs_state():
    ms.set_context(deterministic="ON")
    assert msctx.get_context("deterministic", origin=True).origin.startswith(f"ms.set_context at {Path(__file__).name}:")
    with msctx.context(deterministic="OFF"):
        assert ms.get_context("deterministic") == "OFF"
    msctx.set_context(max_device_memory="512MB", conv_fprop_algo="implicit_precomp_gemm")
    assert ms.get_context("max_device_memory") == 0.5
    assert ms.get_context("conv_fprop_algo") == "precomp_gemm"
    msctx.set_context(cpu_config={"conv_dgrad_algo": "fft"})
    assert ms.get_context("conv_dgrad_algo") == "normal", "a group of another device"


def test_a_target_that_is_not_here_is_planned(absent):
    with pytest.warns(MsctxWarning, match="device not available; what is set is planned") as issued:
        [ms.set_context(**one) for one in ({"device_target": absent, "deterministic": "ON"}, {"max_call_depth": 2000})]
    assert len(issued) == 1
    assert ms.get_context("device_target") == absent
    assert msctx.current().plan.missing
    with pytest.raises(DeviceError), msctx.context(deterministic="ON"):
        pass
    import torch

    assert not torch.are_deterministic_algorithms_enabled()
    ms.set_context(device_target="CPU")
    assert torch.are_deterministic_algorithms_enabled()


def test_defaults_that_follow_the_target_and_the_environment(monkeypatch):
    ms.set_context(device_target="Ascend")
    assert ms.get_context("memory_optimize_level") == 1
    monkeypatch.setenv("DEVICE_ID", "3")
    assert ms.get_context("device_id") == 3


def test_what_is_overridden_is_told_once():
    ms.set_context(memory_optimize_level="O1")
    with pytest.warns(MsctxWarning, match="memory_optimize_level='O1' on cpu: inert: overridden") as issued:  # noqa: PT031
        ms.runtime.set_memory(optimize_level="O0")
        ms.set_context(max_call_depth=2000)
    assert sum("overridden" in str(one.message) for one in issued) == 1


def test_variables_that_msctx_does_not_read_are_told_once(monkeypatch):
    keys._tell_variables.cache_clear()
    monkeypatch.setenv("MINDSPORE_DUMP_CONFIG", "dump.json")
    monkeypatch.setenv("MS_COMPILER_CACHE_ENABLE", "1")
    with pytest.warns(MsctxWarning, match="MINDSPORE_DUMP_CONFIG: msctx does not read it; use dump_config") as issued:
        [ms.set_context(**{name: value}) for name, value in (("enable_compile_cache", True), ("max_call_depth", 2000))]
    assert len(issued) == 1

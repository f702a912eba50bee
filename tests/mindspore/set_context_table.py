"""MindSpore's table of set_context: each key's values, exceptions and forms, as its own code has them."""

import os
from typing import Any, NamedTuple

import msctx.mindspore as ms
from msctx.errors import OptionError
from msctx.mindspore import state
from msctx.mindspore.errors import OptionRuntimeError, OptionTypeError

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
    """One that accepts it, where that is not so on all."""
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
"""Key → what is accepted and ignored, wrong types, wrong values."""

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


def set_target(key: str) -> None:
    if CASES[key].target:
        ms.set_context(device_target=CASES[key].target)


OURS = {TypeError: OptionTypeError, ValueError: OptionError, RuntimeError: OptionRuntimeError}
"""MindSpore's exception → ours."""

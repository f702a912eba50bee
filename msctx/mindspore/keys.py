"""What MindSpore's set_context and get_context know: one row per key, and one per key of its dictionaries."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from msctx.mindspore.checks import (
    GB,
    Bound,
    Check,
    Group,
    Is,
    Look,
    Number,
    OneOf,
    Shown,
    Size,
    Text,
    Unheld,
    compile_cache,
    ge_options,
    gigabytes,
    graph_kernel_flags,
    save_graphs,
    threshold,
    topo_order,
)
from msctx.mindspore.files import cache_directory, directory, env_config, ini_file, print_file, speed_up_file

DEVICE = {"CPU": "cpu", "GPU": "cuda", "Ascend": "ascend"}
"""device_target → msctx's name of the device."""


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key of set_context.

    Attributes:
        check: its check; the value that it returns is in msctx's form.
        types: what the decorator lets through, besides None; nothing: anything.
        default: what get_context returns when nobody set it, or a function of device_target that returns it.
        targets: the targets on which it is taken; on others it is skipped with a warning. Nothing: all.
        shows: msctx's form → what get_context returns.
        kept_once_read: a value that was read by get_context cannot be changed any more.
        hidden: get_context does not know it.
        made: the value is a directory that is made.
    """

    check: Check
    types: tuple[type, ...] = ()
    default: Any = None
    targets: tuple[str, ...] = ()
    shows: Shown = _same
    kept_once_read: bool = False
    hidden: bool = False
    made: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    """One key of a dictionary of set_context.

    Attributes:
        check: its check.
        option: msctx's name of the option.
        default: what get_context returns for its flat name when nobody set it.
        shows: msctx's form → the form in which it is written in the dictionary.
        flat: the form in the dictionary → what get_context returns for its flat name.
        named: its flat name for get_context; empty: its own.
        hidden: get_context does not know it by a flat name.
        levels: its keys, where each is an option of msctx.
    """

    check: Check
    option: str = ""
    default: Any = ""
    shows: Shown = _same
    flat: Shown = _same
    named: str = ""
    hidden: bool = False
    levels: tuple[str, ...] = ()


BOOL = Bound(bool)
TRUTH = OneOf((True, False))
UNHELD = "MindSpore {} has it, and msctx has no such option: it is ignored"
GONE = "MindSpore ignores it, and so does msctx; {} does that now"
DUMP = GONE.format("msctx.set_context(session={'enable_dump': True, 'dump_path': DIR})")

THREADS, DEPTH = 1024, 2**31 - 1
"""The most that msctx takes where MindSpore takes any number of 32 bits."""


def _flag(value: Any) -> str:
    """How MindSpore keeps the switches of ascend_config."""
    return "1" if value else "0"


# --- the dictionaries -------------------------------------------------------------------------------------------------

PRECISION_MODES = OneOf(
    (
        "force_fp16",
        "allow_fp32_to_fp16",
        "allow_mix_precision",
        "must_keep_origin_dtype",
        "force_fp32",
        "allow_fp32_to_bf16",
        "allow_mix_precision_fp16",
        "allow_mix_precision_bf16",
    )
)
JIT_COMPILE: Mapping[Any, str] = {True: "true", False: "false"}

ASCEND_CONFIG: Mapping[str, Inner] = {
    "precision_mode": Inner(check=PRECISION_MODES),
    "jit_compile": Inner(
        check=OneOf(JIT_COMPILE),
        shows=lambda value: {text: truth for truth, text in JIT_COMPILE.items()}.get(value, value),
        flat=lambda value: _flag(value) if isinstance(value, bool) else "",  # auto: as if nobody had set it
    ),
    "atomic_clean_policy": Inner(check=OneOf((0, 1)), flat=str),
    "matmul_allow_hf32": Inner(check=TRUTH, flat=_flag),
    "conv_allow_hf32": Inner(check=TRUTH, flat=_flag),
    "exception_dump": Inner(check=OneOf(("0", "1", "2")), default="2"),
    "op_precision_mode": Inner(check=ini_file),
    "ge_options": Inner(check=ge_options, levels=("global", "session"), flat=json.dumps),
    "parallel_speed_up_json_path": Inner(check=speed_up_file, hidden=True),
    "host_scheduling_max_threshold": Inner(check=threshold, flat=str),
    "op_debug_option": Inner(check=Unheld(Text(OneOf(("oom",))), UNHELD.format("2.3.1")), hidden=True),
    "hccl_watchdog": Inner(check=Unheld(Is(bool), UNHELD.format("2.4")), hidden=True),
    "topo_order": Inner(check=Unheld(topo_order, UNHELD.format("2.3")), hidden=True),
}

PRECOMP = {"implicit_precomp_gemm": "MindSpore's word for it is precomp_gemm, whatever its documentation has"}
FPROP: Mapping[str, str] = {
    name: "implicit_precomp_gemm" if name == "precomp_gemm" else name
    for name in (
        "normal",
        "performance",
        "implicit_gemm",
        "precomp_gemm",
        "gemm",
        "direct",
        "fft",
        "fft_tiling",
        "winograd",
        "winograd_nonfused",
    )
}
DGRAD = ("normal", "performance", "algo_0", "algo_1", "fft", "fft_tiling", "winograd", "winograd_nonfused")
WGRAD = ("normal", "performance", "algo_0", "algo_1", "algo_3", "fft", "fft_tiling", "winograd_nonfused")

GPU_CONFIG: Mapping[str, Inner] = {
    "conv_fprop_algo": Inner(
        check=OneOf(FPROP, advice=PRECOMP),
        default="normal",
        shows=lambda value: "precomp_gemm" if value == "implicit_precomp_gemm" else value,
    ),
    "conv_dgrad_algo": Inner(check=OneOf(DGRAD), default="normal"),
    "conv_wgrad_algo": Inner(check=OneOf(WGRAD), default="normal"),
    "conv_allow_tf32": Inner(check=OneOf((True, False), binding=bool), default=True),
    "matmul_allow_tf32": Inner(check=OneOf((True, False), binding=bool), default=False),
}

AOE_CONFIG: Mapping[str, Inner] = {
    "job_type": Inner(check=OneOf(("1", "2")), option="aoe_config.job_type", default="2", named="aoe_job_type"),
}

JIT_CONFIG = {"jit_level": OneOf(("O0", "O1", "O2")), "infer_boost": OneOf(("on", "off"))}

GROUPS: Mapping[str, Mapping[str, Inner]] = {
    "ascend_config": ASCEND_CONFIG,
    "gpu_config": GPU_CONFIG,
    "aoe_config": AOE_CONFIG,
}
GROUP_DEVICE = {"ascend_config": "ascend", "gpu_config": "cuda", "aoe_config": "ascend"}
FLAT: Mapping[str, tuple[str, str]] = {
    inner.named or key: (group, key) for group, keys in GROUPS.items() for key, inner in keys.items() if not inner.hidden
}
"""The flat names that only get_context knows → the dictionary, and the key in it."""


def _group(name: str, targets: tuple[str, ...] = ()) -> Key:
    checks = {key: inner.check for key, inner in GROUPS[name].items()}
    return Key(check=Group(checks, f"{name}.{{}}"), types=(dict,), targets=targets)


# --- the keys ---------------------------------------------------------------------------------------------------------


TARGETS = OneOf({"CPU": "CPU", "GPU": "GPU", "Ascend": "Ascend", "Davinci": "Ascend"})


def _target(value: Any, look: Look) -> Any:
    if value == "Davinci":
        look.note("Davinci is the old name of Ascend")
    return TARGETS(value, look)


def _device_id(target: str) -> int:
    """0, or what the environment sets."""
    text = os.environ.get("DEVICE_ID", "")
    return int(text) if text.isdecimal() else 0


def _switch(default: bool, targets: tuple[str, ...] = ()) -> Key:
    """A bool that goes straight to the C++ side."""
    return Key(check=BOOL, types=(bool,), default=default, targets=targets)


KEYS: Mapping[str, Key] = {
    # the device and its memory
    "device_target": Key(check=_target, types=(str,)),
    "device_id": Key(check=Number(0, 4095), types=(int,), default=_device_id, kept_once_read=True),
    "max_device_memory": Key(
        check=Size(), types=(str,), default=1024.0, targets=("Ascend", "GPU"), shows=gigabytes, kept_once_read=True
    ),
    "variable_memory_max_size": Key(
        check=Size(most=31),
        types=(str,),
        default="0",
        targets=("Ascend",),
        shows=lambda size: f"{size // GB} * 1024 * 1024 * 1024",
        kept_once_read=True,
    ),
    "mempool_block_size": Key(
        check=Size(least=1.0), types=(str,), default=1.0, targets=("GPU", "Ascend"), shows=gigabytes, kept_once_read=True
    ),
    "op_timeout": Key(check=Number(0), types=(int,), default=900),
    # debugging
    "save_graphs": Key(check=save_graphs, types=(bool, int), default=0),
    "save_graphs_path": Key(check=directory, types=(str,), default=".", made=True),
    "deterministic": Key(check=OneOf(("ON", "OFF")), types=(str,), default="OFF"),
    "enable_dump": Key(check=Unheld(None, DUMP), types=(bool,), hidden=True),
    "save_dump_path": Key(check=Unheld(None, DUMP), types=(str,), hidden=True),
    "print_file_path": Key(check=print_file, types=(str,), default="", targets=("Ascend",)),
    "env_config_path": Key(check=env_config, types=(str,), default=""),
    "precompile_only": _switch(False),
    "reserve_class_name_in_scope": Key(check=Is(bool, ValueError), types=(bool,), default=True),
    "pynative_synchronize": _switch(False),
    "debug_level": Key(check=OneOf((0, 1), binding=int), types=(int,), default=0),
    # how programs run
    "mode": Key(check=OneOf((0, 1), binding=int), types=(int,), default=1),
    "enable_graph_kernel": _switch(False),
    "graph_kernel_flags": Key(check=graph_kernel_flags, types=(str,), default=""),
    "enable_reduce_precision": _switch(True, ("Ascend",)),
    "aoe_tune_mode": Key(check=OneOf(("online", "offline")), types=(str,), default=""),
    "aoe_config": _group("aoe_config"),
    "check_bprop": _switch(False),
    "max_call_depth": Key(check=Number(1, most=DEPTH), types=(int,), default=1000),
    "grad_for_scalar": _switch(False),
    "enable_compile_cache": Key(check=compile_cache, types=(bool,)),
    "compile_cache_path": Key(check=cache_directory, default=""),
    "inter_op_parallel_num": Key(check=Number(0, most=THREADS), types=(int,), default=0),
    "runtime_num_threads": Key(
        check=Number(0, most=THREADS), types=(int,), default=lambda target: min(os.cpu_count() or 1, 30)
    ),
    "disable_format_transform": _switch(False, ("GPU",)),
    "support_binary": Key(check=Is(bool), default=False),
    "memory_optimize_level": Key(
        check=OneOf(("O0", "O1")), default=lambda target: int(target == "Ascend"), shows=lambda level: int(level == "O1")
    ),
    "memory_offload": Key(check=OneOf(("ON", "OFF")), default=False, shows=lambda value: value == "ON"),
    "jit_syntax_level": Key(check=OneOf((0, 1, 2), binding=int), types=(int,), default=2),
    "ascend_config": _group("ascend_config", ("Ascend",)),
    "gpu_config": _group("gpu_config", ("GPU",)),
    # what MindSpore takes and drops, and what came later
    "enable_sparse": Key(check=Unheld(None, "MindSpore ignores it, and so does msctx"), hidden=True),
    "auto_tune_mode": Key(check=Unheld(None, GONE.format("set_context(aoe_tune_mode='online')")), hidden=True),
    "enable_auto_mixed_precision": Key(
        check=Unheld(None, "MindSpore ignores it, and so does msctx"), types=(bool,), hidden=True
    ),
    "jit_config": Key(check=Unheld(Group(JIT_CONFIG, "{}"), UNHELD.format("2.3.1")), types=(dict,), hidden=True),
    "exec_order": Key(check=Unheld(OneOf(("bfs", "dfs")), UNHELD.format("2.4")), hidden=True),
}

SPEED_UP = {
    "recompute_comm_overlap": False,
    "matmul_grad_comm_overlap": False,
    "enable_task_opt": False,
    "enable_grad_comm_opt": False,
    "enable_opt_shard_comm_opt": False,
    "enable_concat_eliminate_opt": False,
    "enable_begin_end_inline_opt": False,
    "compute_communicate_fusion_level": 0,
}
"""What parallel_speed_up_json_path's file may hold, as get_context knows it by flat names → default."""

NEVER_SET: Mapping[str, Any] = {
    "auto_tune_mode": "NO_TUNE",
    "enable_profiling": False,
    "exec_order": "",
    "infer_boost": "",
    "jit_config": {},
    "jit_level": "",
    "profiling_options": "training_trace",
}
"""Further names of get_context, for which msctx has no option: they always have MindSpore's default."""

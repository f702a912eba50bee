"""What MindSpore's set_context and get_context know: one row per key, and one per key of its dictionaries."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from msctx.mindspore.checks import (
    GB,
    Check,
    Each,
    Group,
    Is,
    Look,
    Number,
    OneOf,
    Size,
    Unheld,
    compile_cache,
    gigabytes,
    graph_kernel_flags,
    save_graphs,
    threshold,
)
from msctx.mindspore.files import cache_directory, directory, env_config, ini_file, print_file, speed_up_file

DEVICE = {"CPU": "cpu", "GPU": "cuda", "Ascend": "ascend"}
"""device_target → msctx's name of the device."""


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Key:
    """One key of set_context, or of one of its dictionaries.

    Attributes:
        check: its check; the value that it returns is in msctx's form.
        types: what the decorator lets through, besides None; nothing: anything. In a dictionary there is no decorator.
        default: what get_context returns when nobody set it, or a function of device_target that returns it.
        targets: the targets that accept it; on others it is skipped with a warning. Nothing: all.
        shows: msctx's form → what get_context returns (for a dictionary: in it).
        flat: for a key of a dictionary, the form in it → what get_context returns for its flat name.
        kept_once_read: once get_context has returned the value, it cannot be changed any more.
        hidden: get_context does not know it (a key of a dictionary: by a flat name).
    """

    check: Check
    types: tuple[type, ...] = ()
    default: Any = None
    targets: tuple[str, ...] = ()
    shows: Callable[[Any], Any] = _same
    flat: Callable[[Any], Any] = _same
    kept_once_read: bool = False
    hidden: bool = False


TRUTH = OneOf((True, False))
UNHELD = "MindSpore {} has it, and msctx has no such option: it is ignored"
IGNORED = "MindSpore ignores it, and so does msctx"
GONE = f"{IGNORED}; {{}} does that now"
DUMP = GONE.format("msctx.set_context(session={'enable_dump': True, 'dump_path': DIR})")

THREADS, DEPTH = 1024, 2**31 - 1
"""The most that msctx takes where MindSpore takes any number of 32 bits."""


def _words(words: str) -> OneOf:
    return OneOf(tuple(words.split()))


def _flag(value: Any) -> str:
    """How MindSpore keeps the switches of ascend_config."""
    return "1" if value else "0"


# --- the dictionaries -------------------------------------------------------------------------------------------------

PRECISION_MODES = _words(
    "force_fp16 allow_fp32_to_fp16 allow_mix_precision must_keep_origin_dtype force_fp32 allow_fp32_to_bf16 "
    "allow_mix_precision_fp16 allow_mix_precision_bf16"
)
JIT_COMPILE: Mapping[Any, str] = {True: "true", False: "false"}
GE_OPTIONS = {"global": Each(Is(str)), "session": Each(Is(str))}

ASCEND_CONFIG: Mapping[str, Key] = {
    "precision_mode": Key(PRECISION_MODES, default=""),
    "jit_compile": Key(
        OneOf(JIT_COMPILE),
        default="",
        shows=lambda value: {text: truth for truth, text in JIT_COMPILE.items()}.get(value, value),
        flat=lambda value: _flag(value) if isinstance(value, bool) else "",  # auto: as if nobody had set it
    ),
    "atomic_clean_policy": Key(OneOf((0, 1)), default="", flat=str),
    "matmul_allow_hf32": Key(TRUTH, default="", flat=_flag),
    "conv_allow_hf32": Key(TRUTH, default="", flat=_flag),
    "exception_dump": Key(OneOf(("0", "1", "2")), default="2"),
    "op_precision_mode": Key(ini_file, default=""),
    "ge_options": Key(Group(GE_OPTIONS), default="", flat=json.dumps),
    "parallel_speed_up_json_path": Key(speed_up_file, hidden=True),
    "host_scheduling_max_threshold": Key(threshold, default="", flat=str),
    "op_debug_option": Key(
        Unheld(UNHELD.format("2.3.1"), lambda value, look: OneOf(("oom",))(Is(str)(value, look), look)), hidden=True
    ),
    "hccl_watchdog": Key(Unheld(UNHELD.format("2.4"), Is(bool)), hidden=True),
    "topo_order": Key(Unheld(UNHELD.format("2.3"), Each(_words("dfs bfs rdfs"))), hidden=True),
}

PRECOMP = {"implicit_precomp_gemm": "MindSpore's word for it is precomp_gemm, whatever its documentation has"}
FPROP = _words("normal performance implicit_gemm precomp_gemm gemm direct fft fft_tiling winograd winograd_nonfused").values
FPROP_NAMES = {name: name for name in FPROP} | {"precomp_gemm": "implicit_precomp_gemm"}

GPU_CONFIG: Mapping[str, Key] = {
    "conv_fprop_algo": Key(
        OneOf(FPROP_NAMES, advice=PRECOMP),
        default="normal",
        shows=lambda value: "precomp_gemm" if value == "implicit_precomp_gemm" else value,
    ),
    "conv_dgrad_algo": Key(
        _words("normal performance algo_0 algo_1 fft fft_tiling winograd winograd_nonfused"), default="normal"
    ),
    "conv_wgrad_algo": Key(
        _words("normal performance algo_0 algo_1 algo_3 fft fft_tiling winograd_nonfused"), default="normal"
    ),
    "conv_allow_tf32": Key(OneOf((True, False), binding=bool), default=True),
    "matmul_allow_tf32": Key(OneOf((True, False), binding=bool), default=False),
}

AOE_CONFIG: Mapping[str, Key] = {"job_type": Key(OneOf(("1", "2")), default="2")}

JIT_CONFIG = {"jit_level": _words("O0 O1 O2"), "infer_boost": _words("on off")}

GROUPS: Mapping[str, Mapping[str, Key]] = {
    "ascend_config": ASCEND_CONFIG,
    "gpu_config": GPU_CONFIG,
    "aoe_config": AOE_CONFIG,
}
GROUP_DEVICE = {"ascend_config": "ascend", "gpu_config": "cuda", "aoe_config": "ascend"}
FLAT: Mapping[str, tuple[str, str]] = {
    "aoe_job_type" if key == "job_type" else key: (group, key)
    for group, keys in GROUPS.items()
    for key, row in keys.items()
    if not row.hidden
}
"""The flat names that only get_context knows → the dictionary, and the key in it."""


def _group(name: str, targets: tuple[str, ...] = ()) -> Key:
    return Key(Group({key: row.check for key, row in GROUPS[name].items()}, f"{name}.{{}}"), (dict,), targets=targets)


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
    """A bool that only the C++ side checks."""
    return Key(Is(bool, RuntimeError), (bool,), default, targets)


def _number(check: Check, default: Any) -> Key:
    return Key(check, (int,), default)


KEYS: Mapping[str, Key] = {
    # the device and its memory
    "device_target": Key(_target, (str,)),
    "device_id": Key(Number(0, 4095), (int,), _device_id, kept_once_read=True),
    "max_device_memory": Key(Size(), (str,), 1024.0, ("Ascend", "GPU"), gigabytes, kept_once_read=True),
    "variable_memory_max_size": Key(
        Size(most=31), (str,), "0", ("Ascend",), lambda size: f"{size // GB} * 1024 * 1024 * 1024", kept_once_read=True
    ),
    "mempool_block_size": Key(Size(least=1.0), (str,), 1.0, ("GPU", "Ascend"), gigabytes, kept_once_read=True),
    "op_timeout": _number(Number(0), 900),
    # debugging
    "save_graphs": Key(save_graphs, (bool, int), 0),
    "save_graphs_path": Key(directory, (str,), "."),
    "deterministic": Key(_words("ON OFF"), (str,), "OFF"),
    "enable_dump": Key(Unheld(DUMP), (bool,), hidden=True),
    "save_dump_path": Key(Unheld(DUMP), (str,), hidden=True),
    "print_file_path": Key(print_file, (str,), "", ("Ascend",)),
    "env_config_path": Key(env_config, (str,), ""),
    "precompile_only": _switch(False),
    "reserve_class_name_in_scope": Key(Is(bool, ValueError), (bool,), True),
    "pynative_synchronize": _switch(False),
    "debug_level": _number(OneOf((0, 1), binding=int), 0),
    # how programs run
    "mode": _number(OneOf((0, 1), binding=int), 1),
    "enable_graph_kernel": _switch(False),
    "graph_kernel_flags": Key(graph_kernel_flags, (str,), ""),
    "enable_reduce_precision": _switch(True, ("Ascend",)),
    "aoe_tune_mode": Key(_words("online offline"), (str,), ""),
    "aoe_config": _group("aoe_config"),
    "check_bprop": _switch(False),
    "max_call_depth": _number(Number(1, most=DEPTH), 1000),
    "grad_for_scalar": _switch(False),
    "enable_compile_cache": Key(compile_cache, (bool,)),
    "compile_cache_path": Key(cache_directory, default=""),
    "inter_op_parallel_num": _number(Number(0, most=THREADS), 0),
    "runtime_num_threads": _number(Number(0, most=THREADS), lambda target: min(os.cpu_count() or 1, 30)),
    "disable_format_transform": _switch(False, ("GPU",)),
    "support_binary": Key(Is(bool), default=False),
    "memory_optimize_level": Key(
        _words("O0 O1"), default=lambda target: int(target == "Ascend"), shows=lambda level: int(level == "O1")
    ),
    "memory_offload": Key(_words("ON OFF"), default=False, shows=lambda value: value == "ON"),
    "jit_syntax_level": _number(OneOf((0, 1, 2), binding=int), 2),
    "ascend_config": _group("ascend_config", ("Ascend",)),
    "gpu_config": _group("gpu_config", ("GPU",)),
    # what MindSpore accepts and ignores, and what came later
    "enable_sparse": Key(Unheld(IGNORED), hidden=True),
    "auto_tune_mode": Key(Unheld(GONE.format("set_context(aoe_tune_mode='online')")), hidden=True),
    "enable_auto_mixed_precision": Key(Unheld(IGNORED), (bool,), hidden=True),
    "jit_config": Key(Unheld(UNHELD.format("2.3.1"), Group(JIT_CONFIG)), (dict,), hidden=True),
    "exec_order": Key(Unheld(UNHELD.format("2.4"), _words("bfs dfs")), hidden=True),
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

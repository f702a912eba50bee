"""What MindSpore's set_context and get_context add to msctx's options: types, targets, defaults and forms, one row a key."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

GB = 2**30
DEVICE = {"CPU": "cpu", "GPU": "cuda", "Ascend": "ascend"}
"""device_target → msctx's name of the device."""


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Key:
    """One key of set_context, or of one of its dictionaries.

    Attributes:
        types: what else raises TypeError; nothing: msctx's option decides alone.
        default: what get_context returns when nobody set it, or a function of device_target that returns it.
        targets: the targets that accept it; on others it is skipped with a warning. Nothing: all.
        shows: msctx's form → what get_context returns.
        ignored: why the value has no effect; get_context does not know such a key.
    """

    types: tuple[type, ...] = ()
    default: Any = None
    targets: tuple[str, ...] = ()
    shows: Callable[[Any], Any] = _same
    ignored: str = ""


IGNORED = "MindSpore ignores it, and so does msctx"
DUMP = f"{IGNORED}; msctx.set_context(session={{'enable_dump': True, 'dump_path': DIR}}) does that now"


def gigabytes(size: int) -> float:
    """Bytes as MindSpore's number of GB, to the digits that a C float has."""
    return float(f"{size / GB:.7g}")


def _device_id(target: str) -> int:
    """0, or what the environment sets."""
    text = os.environ.get("DEVICE_ID", "")
    return int(text) if text.isdecimal() else 0


def _interop_threads(target: str) -> int:
    """0, or what was once set and stays in force, whatever was refused since."""
    from msctx.switches.torch_core import interop_threads

    return interop_threads()


def _bool(default: bool, *targets: str) -> Key:
    return Key((bool,), default, targets)


def _int(default: Any) -> Key:
    return Key((int,), default)


def _str(default: Any, *targets: str) -> Key:
    return Key((str,), default, targets)


GROUPS: Mapping[str, Mapping[str, Key]] = {
    "ascend_config": {
        "precision_mode": Key(default=""),
        "jit_compile": Key(default="", shows=lambda value: {"true": True, "false": False, "auto": ""}[value]),
        "atomic_clean_policy": Key(default=""),
        "matmul_allow_hf32": Key(default=""),
        "conv_allow_hf32": Key(default=""),
        "exception_dump": Key(default="2"),
        "op_precision_mode": _str(""),
        "parallel_speed_up_json_path": _str(""),
        "host_scheduling_max_threshold": _int(""),
    },
    "gpu_config": {
        "conv_fprop_algo": Key(
            default="normal", shows=lambda value: "precomp_gemm" if value == "implicit_precomp_gemm" else value
        ),
        "conv_dgrad_algo": Key(default="normal"),
        "conv_wgrad_algo": Key(default="normal"),
        "conv_allow_tf32": _bool(True),
        "matmul_allow_tf32": _bool(False),
    },
    "aoe_config": {"job_type": Key(default="2")},
}
"""Dictionary → its keys; a key is also a name of get_context."""
GROUP_DEVICE = {"ascend_config": "ascend", "gpu_config": "cuda", "aoe_config": "ascend"}
FLAT: Mapping[str, tuple[str, str]] = {
    "aoe_job_type" if key == "job_type" else key: (group, key) for group, keys in GROUPS.items() for key in keys
}
"""The flat names that only get_context knows → the dictionary, and the key in it."""

KEYS: Mapping[str, Key] = {
    # the device and its memory
    "device_target": _str(None),
    "device_id": _int(_device_id),
    "max_device_memory": Key((str,), 1024.0, ("Ascend", "GPU"), gigabytes),
    "variable_memory_max_size": Key((str,), "0", ("Ascend",), lambda size: f"{size // GB} * 1024 * 1024 * 1024"),
    "mempool_block_size": Key((str,), 1.0, ("GPU", "Ascend"), gigabytes),
    "op_timeout": _int(900),
    # debugging
    "save_graphs": Key((bool, int), 0),
    "save_graphs_path": _str("."),
    "deterministic": _str("OFF"),
    "enable_dump": Key((bool,), ignored=DUMP),
    "save_dump_path": Key((str,), ignored=DUMP),
    "print_file_path": _str("", "Ascend"),
    "env_config_path": _str(""),
    "precompile_only": _bool(False),
    "reserve_class_name_in_scope": _bool(True),
    "pynative_synchronize": _bool(False),
    "debug_level": _int(0),
    # how programs run
    "mode": _int(1),
    "enable_graph_kernel": _bool(False),
    "graph_kernel_flags": _str(""),
    "enable_reduce_precision": _bool(True, "Ascend"),
    "aoe_tune_mode": _str(""),
    "aoe_config": Key((dict,)),
    "check_bprop": _bool(False),
    "max_call_depth": _int(1000),
    "grad_for_scalar": _bool(False),
    "enable_compile_cache": Key((bool,)),
    "compile_cache_path": _str(""),
    "inter_op_parallel_num": _int(_interop_threads),
    "runtime_num_threads": _int(lambda target: min(os.cpu_count() or 1, 30)),
    "disable_format_transform": _bool(False, "GPU"),
    "support_binary": _bool(False),
    "memory_optimize_level": Key((str,), lambda target: int(target == "Ascend"), shows=lambda level: int(level == "O1")),
    "memory_offload": Key((str,), False, shows=lambda value: value == "ON"),
    "jit_syntax_level": _int(2),
    "ascend_config": Key((dict,), targets=("Ascend",)),
    "gpu_config": Key((dict,), targets=("GPU",)),
    # what MindSpore accepts and ignores
    "enable_sparse": Key(ignored=IGNORED),
    "auto_tune_mode": Key(ignored=f"{IGNORED}; set_context(aoe_tune_mode='online') does that now"),
    "enable_auto_mixed_precision": Key((bool,), ignored=IGNORED),
}

"""What several themes read: what is tuned, what goes to CANN's graph engine, and what keeps compiled code apart."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Any

from msctx.options import DEVICES
from msctx.options.algorithm_policy import RULES, rules_of
from msctx.options.registry import GE, GE_WORDS
from msctx.options.switch_values import Kernels
from msctx.themes.base import On, once, reason

SPEED_UP = "parallel_speed_up_json_path"
LEFT_TO_NPU = "not for torchair's graphs"

# --- tuning -----------------------------------------------------------------------------------------------------------

HERE = "./"
"""work_path, where it is not set."""
SUB_GRAPHS, OPERATORS, OLDER, BUCKETS = "1", "2", "3", "4"
"""Words of aoe_mode."""
TUNED = ("conv_fprop_algo", "conv_dgrad_algo", "conv_wgrad_algo", "matmul_algo")
TYPES = {
    **dict.fromkeys(("Conv2D", "Conv3D", "DepthwiseConv2dNative"), "conv_fprop_algo"),
    "Conv2DBackpropInput": "conv_dgrad_algo",
    "Conv2DBackpropFilter": "conv_wgrad_algo",
    **dict.fromkeys(("MatMul", "MatMulV2", "BatchMatMul", "BatchMatMulV2", "GEMM"), "matmul_algo"),
}
"""Type of operator, as aoe_config_file has it → what chooses its algorithm."""
SEARCH = {
    SUB_GRAPHS: {"benchmark_fusion": True, "benchmark_epilogue_fusion": True, "combo_kernels": True},
    OPERATORS: {"max_autotune_pointwise": True, "coordinate_descent_tuning": True},
}
"""What is tuned → entries of inductor's configuration."""


def job(on: On) -> str:
    """What is tuned now, in words of aoe_mode; ``""``: nothing."""
    return str(on.get("aoe_mode") or (job_of_mode(on) if on.get("aoe_tune_mode") == "online" else ""))


def job_of_mode(on: On) -> str:
    return str(on.get("aoe_config.job_type", OPERATORS))


def recorded_in(on: On) -> str | None:
    """The folder in which problems are only recorded; ``None``: they are not."""
    if on.get("aoe_tune_mode") != "offline" or job_of_mode(on) != OPERATORS:
        return None
    return str(on.get("work_path", HERE))


@once
def measured(on: On) -> dict[str, str]:
    """The options of algorithms that tuning sets where they are unset."""
    if job(on) != OPERATORS:
        return {}
    only = on.content("aoe_config_file")
    names, types = only.get("tune_ops_name", ()), only.get("tune_ops_type", ())
    if not names and not types:
        return dict.fromkeys(TUNED, "performance")
    found = {TYPES[kind]: "performance" for kind in types if kind in TYPES}
    if names:
        found |= dict.fromkeys(("conv_algo_rules", "matmul_algo_rules"), "; ".join(f"{name}: performance" for name in names))
    return found


def kept_in(on: On) -> str | None:
    """The file of measurements in work_path."""
    path = on.get("work_path")
    return os.path.join(path, "msctx_tuning.json") if path is not None and job(on) == OPERATORS else None


def search(on: On) -> tuple[tuple[str, Any], ...]:
    """Entries of inductor's configuration."""
    found = dict(SEARCH.get(job(on), {}))
    if found and on.content("aoe_config_file").get("tune_optimization_level") == "O1":
        found["coordinate_descent_check_all_directions"] = True
    return tuple(found.items())


# --- CANN's graph engine ----------------------------------------------------------------------------------------------

ALONE = reason("only for functions of msctx.jit", "set mode=GRAPH_MODE for modules, which run eagerly without")
GRAPHS = "acts on torchair's graphs"
ONCE = "the engine keeps the settings of its first graph"
WITH_GRAPHS = (
    *("jit_compile", "atomic_clean_policy", "host_scheduling_max_threshold", "buffer_optimize", "stream_max_parallel_num"),
    *("ac_parallel_enable", "input_fusion_size", "enable_small_channel", "op_debug_level", "op_debug_config", "debug_dir"),
    *("op_compiler_cache_mode", "op_compiler_cache_dir"),
)
"""The options that go with each graph."""
WITH_ENGINE = ("fusion_switch_file", "export_compile_stat")
"""The options that it is initialised with."""
ALLOW_HF32 = "ge.exec.allow_hf32"
"""CANN's key for two options, with a digit for each."""
HF32 = ("conv_allow_hf32", "matmul_allow_hf32")
DIGITS = f"graphs get {ALLOW_HF32}: a digit each for convolutions and matmuls, - if unset"
DUMPS = ("session.enable_dump", "dump_path", "dump_mode", "dump_step", "dump_layer", "dump_data", "quant_dumpable")
PINNED = {"ge.opSelectImplmode": "high_precision", "ge.exec.staticMemoryPolicy": "2"}
"""What torchair initialises the engine with, whatever is set."""
OVERWRITTEN = (ALLOW_HF32, "ge.deterministicLevel", "ge.exec.deviceId")
"""What it has of its own for the engine, from torch_npu's flags, whatever a configuration holds."""


def sendable(keys: Iterable[str], level: str) -> list[str]:
    """The keys of ge_options that go to the engine as they are."""
    return [key for key in keys if key not in GE and not (level == "global" and key in OVERWRITTEN)]


def _raw(on: On, level: str) -> dict[str, str]:
    keys = on.get(f"ge_options.{level}", {})
    return {key: keys[key] for key in sendable(keys, level)}


@once
def graph_options(on: On) -> dict[str, str]:
    """What goes with each graph; there the engine looks first, before what it was initialised with."""
    found = {}
    for name in WITH_GRAPHS:
        if (setting := on.settings.get(name)) is not None:
            found[setting.option.ge] = GE_WORDS.get(name, {}).get(setting.value, str(setting.value))
    if any(name in on.settings for name in HF32):
        found[ALLOW_HF32] = "".join(str(int(on.get(name))) if name in on.settings else "-" for name in HF32)
    if on.get("session.enable_dump") and on.get("dump_path"):
        for name in DUMPS:
            if (setting := on.settings.get(name)) is not None:
                found[setting.option.ge] = "1" if setting.value is True else str(setting.value)
    return found | _raw(on, "session")


def engine_options(on: On) -> dict[str, str]:
    """What the engine is initialised with."""
    settings = [setting for name in WITH_ENGINE if (setting := on.settings.get(name)) is not None]
    return {setting.option.ge: str(setting.value) for setting in settings} | _raw(on, "global")


def tuner(on: On) -> dict[str, str] | None:
    """CANN's tuner of graphs, while they are compiled."""
    if job(on) != OPERATORS:
        return None
    return {"mode": OPERATORS, "path": on.get("work_path", HERE), "file": on.get("aoe_config_file", "")}


def with_graphs(on: On) -> dict[str, Any]:
    """The assignment of what goes with each graph, which keeps its code apart."""
    return {"torch.npu.graph_options": graph_options(on) or None} | apart(on)


# --- what keeps code apart ----------------------------------------------------------------------------------------------

IN_GRAPHS = (
    *("recompute_comm_overlap", "matmul_grad_comm_overlap", "enable_task_opt", "enable_concat_eliminate_opt"),
    "compute_communicate_fusion_level",
)
"""The keys of parallel_speed_up_json_path that act on compiled code."""
LEVELS = {1: ("dump_cce", "dump_loc"), 2: ("dump_cce", "dump_loc", "ccec_O0", "ccec_g"), 4: ("dump_cce", "dump_loc")}
"""op_debug_level → the words of op_debug_config for it; 3 keeps binaries, which inductor does by itself."""


def debug_words(on: On) -> list[str]:
    """The words of op_debug_config, those of op_debug_level included."""
    words = on.content("op_debug_config").get("op_debug_config", ())
    return [*dict.fromkeys([*words, *LEVELS.get(on.get("op_debug_level"), ())])]


def kernels(on: On, words: Collection[str]) -> Kernels | None:
    """The sources of kernels that are saved."""
    if not {"dump_cce", "dump_loc"} & {*words}:
        return None
    return Kernels(path=on.get("debug_dir", ""), locations="dump_loc" in words)


def by_module(on: On) -> bool:
    """Whether rules name modules: code that was compiled without such rules reads copies of the weights, which belong to none."""
    rules = (rule for name in RULES if name in on.settings for rule in rules_of(on.get(name)))
    return any(field == "module" for rule in rules for field, _ in rule.conditions)


def apart(on: On) -> dict[str, Any]:
    """What distinguishes the code that is compiled under all these options; alike on all devices, which share the switch. Where its
    paths lead is found out when it is set."""
    found: dict[str, Any] = {}
    for device in DEVICES:
        for key, value in _apart(on.at(device)).items():
            found[key if found.get(key, value) == value else f"{device}.{key}"] = value
    if "ascend" in on.facts.devices:  # what keeps code apart that torchair compiles
        npu = on.at("ascend")
        found |= graph_options(npu) | {f"tuner.{key}": value for key, value in (tuner(npu) or {}).items()}
    return {"torch.dynamo.apart": found or None}


@once
def _apart(on: On) -> dict[str, Any]:
    words = sorted(debug_words(on))
    found: dict[str, Any] = dict.fromkeys(words, True)
    if kernels(on, words):
        found["debug_dir"] = on.get("debug_dir") or "."
    if on.get("quant_dumpable") == "1":
        found["quant_dumpable"] = True
    if on.get("save_graphs"):
        found |= {"save_graphs": on.get("save_graphs"), "save_graphs_path": on.get("save_graphs_path", ".")}
    if on.get("debug_level"):
        found["debug"] = True
    if by_module(on):
        found["rules by module"] = True
    keys = {name: f"{SPEED_UP}.{name}" for name in IN_GRAPHS}
    return found | {name: str(on.get(key)) for name, key in keys.items() if key in on.settings}

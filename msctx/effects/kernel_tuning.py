"""aoe_tune_mode and aoe_mode: kernels are measured while the program runs, by msctx's own tuning and by inductor's, or later."""

from __future__ import annotations

import os
from typing import Any

from msctx.effects.base import NOTHING_ASKED, STAYS, Outcome, Want, approximated, effect, honoured, refused
from msctx.effects.compilation import apart
from msctx.effects.graph_engine import GRAPHS, tuner

TUNING = ("aoe_tune_mode", "aoe_mode")
HERE = "./"
"""work_path, where it is not set."""
SUB_GRAPHS, OPERATORS, OLDER, BUCKETS = "1", "2", "3", "4"
ALGORITHMS = ("conv_fprop_algo", "conv_dgrad_algo", "conv_wgrad_algo", "matmul_algo")
TYPES = {
    "Conv2D": ("conv_fprop_algo",),
    "Conv3D": ("conv_fprop_algo",),
    "DepthwiseConv2dNative": ("conv_fprop_algo",),
    "Conv2DBackpropInput": ("conv_dgrad_algo",),
    "Conv2DBackpropFilter": ("conv_wgrad_algo",),
    "MatMul": ("matmul_algo",),
    "MatMulV2": ("matmul_algo",),
    "BatchMatMul": ("matmul_algo",),
    "BatchMatMulV2": ("matmul_algo",),
    "GEMM": ("matmul_algo",),
}
"""Type of operator, as aoe_config_file has it → what chooses its algorithm."""
SEARCH = {
    SUB_GRAPHS: {"benchmark_fusion": True, "benchmark_epilogue_fusion": True, "combo_kernels": True},
    OPERATORS: {"max_autotune_pointwise": True, "coordinate_descent_tuning": True},
}
"""What is tuned → entries of inductor's configuration."""
ELSEWHERE = "inductor measures how operators are fused on CUDA alone"
NOT_RECORDED = (
    "inductor measures a graph while it compiles it, and none that was recorded: aoe_tune_mode=online does so, and "
    "enable_compile_cache=True keeps what it finds for later runs"
)
FOR_LATER = (
    "nothing is measured: each {} is recorded in work_path/msctx_tuning.json; performance measures it with that tuning_file"
)
RECORDED_BY_NPU = (
    f"{STAYS}, since torch_npu cannot switch it off again; operators that CANN compiles for the call, of torch_npu's list, are "
    "recorded for CANN's own tuner (aoe); nothing is measured"
)
PROBLEM = {"cpu": "convolution and matmul", "cuda": "convolution"}
BUCKET_SIZES = "bucket sizes are not tuned. Set bucket_cap_mb of DistributedDataParallel"
SEARCHED = "what inductor generates is searched by coordinate descent"
MEASURED = f"each {{}} is measured when it is first met, and kept in tuning_file; {SEARCHED}"


def job(want: Want) -> str:
    """What is tuned now, in words of aoe_mode; ``""``: nothing."""
    if (mode := want.in_force("aoe_mode")) is not None:
        return str(mode.value)
    return _job_of_mode(want) if _mode(want) == "online" else ""


def _mode(want: Want) -> str:
    tune = want.in_force("aoe_tune_mode")
    return "" if tune is None else str(tune.value)


def _job_of_mode(want: Want) -> str:
    return str(want.other("aoe_config.job_type", OPERATORS))


def recorded_in(want: Want) -> str | None:
    """The folder in which problems are only recorded; ``None``: they are not."""
    if _mode(want) != "offline" or _job_of_mode(want) != OPERATORS:
        return None
    path = want.in_force("work_path")
    return path.value if path is not None else HERE


def _narrowed(want: Want) -> dict[str, Any]:
    found = want.in_force("aoe_config_file")
    return dict(found.content or {}) if found is not None else {}


def measured(want: Want) -> dict[str, str]:
    """The options of algorithms that tuning sets where they are unset."""
    if job(want) != OPERATORS:
        return {}
    only = _narrowed(want)
    names, types = only.get("tune_ops_name", ()), only.get("tune_ops_type", ())
    if not names and not types:
        return dict.fromkeys(ALGORITHMS, "performance")
    found = {option: "performance" for kind in types for option in TYPES.get(kind, ())}
    if names:
        found |= dict.fromkeys(("conv_algo_rules", "matmul_algo_rules"), "; ".join(f"{name}: performance" for name in names))
    return found


def kept_in(want: Want) -> str | None:
    """The file of measurements in work_path."""
    path = want.in_force("work_path")
    return os.path.join(path.value, "msctx_tuning.json") if path is not None and job(want) == OPERATORS else None


def search(want: Want) -> tuple[tuple[str, Any], ...]:
    """Entries of inductor's configuration."""
    found = dict(SEARCH.get(job(want), {}))
    if found and _narrowed(want).get("tune_optimization_level") == "O1":
        found["coordinate_descent_check_all_directions"] = True
    return tuple(found.items())


@effect("aoe_tune_mode", "aoe_mode", "aoe_config.job_type", "aoe_config_file", "work_path")
def tuning(want: Want) -> Outcome:
    from msctx.effects.algorithms import carried_out, obstacle
    from msctx.effects.graph_mode import compilation

    what = job(want)
    if not what and _mode(want) == "offline":
        return _offline(want)
    if what == OLDER:
        return refused("3 is known to older CANN alone")
    if what == BUCKETS:
        return refused(BUCKET_SIZES)
    if want.device == "ascend":
        return _by_cann(want, what)
    if what == SUB_GRAPHS and want.device == "cpu":
        return refused(ELSEWHERE)
    found = {"graph.compilation": compilation(want)}
    if measured(want):
        if why := obstacle(want):
            return approximated(found, f"{why}; {SEARCHED} alone")
        found |= carried_out(want)
    if want.option.name == "aoe_config_file":
        left = [kind for kind in _narrowed(want).get("tune_ops_type", ()) if kind not in TYPES]
        left += _narrowed(want).get("feature", ())
        return approximated(found, f"nothing is tuned for {', '.join(left)}") if left else honoured(found)
    return honoured(found, MEASURED.format(PROBLEM[want.device]) if what == OPERATORS else "")


def _by_cann(want: Want, what: str) -> Outcome:
    if what == SUB_GRAPHS:
        return refused("torchair has CANN tune single operators alone (2)")
    if not what:
        return NOTHING_ASKED
    return approximated(
        {"torch.npu.graph_tuner": tuner(want)} | apart(want), f"graphs of static shape alone are tuned; {GRAPHS}"
    )


def _offline(want: Want) -> Outcome:
    from msctx.effects.algorithms import carried_out, obstacle

    if want.device == "ascend":
        if _job_of_mode(want) != OPERATORS:
            return refused("torch_npu records single operators alone (2)")
        return approximated({"torch.npu.aoe_folder": recorded_in(want)}, RECORDED_BY_NPU)
    if _job_of_mode(want) != OPERATORS:
        return refused(ELSEWHERE if want.device == "cpu" else NOT_RECORDED)
    if why := obstacle(want):
        return refused(why)
    return honoured(carried_out(want), FOR_LATER.format(PROBLEM[want.device]))

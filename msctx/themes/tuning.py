"""Kernels are measured while the program runs, by msctx's own tuning and by inductor's, or later."""

from __future__ import annotations

from msctx.options import Setting
from msctx.themes.base import STAYS, On, Outcome, Outcomes, approximated, as_it_is, honoured, refused
from msctx.themes.common import (
    BUCKETS,
    GRAPHS,
    OLDER,
    OPERATORS,
    SUB_GRAPHS,
    TYPES,
    apart,
    job,
    job_of_mode,
    measured,
    narrowed,
    recorded_in,
    tuner,
)
from msctx.themes.convolution import assignments_of, obstacle
from msctx.themes.graph import compilation

TUNING = ("aoe_tune_mode", "aoe_mode")
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


def translate(on: On) -> Outcomes:
    return on.each(
        {
            "aoe_tune_mode": _tuning,
            "aoe_mode": _tuning,
            "aoe_config.job_type": _tuning,
            "aoe_config_file": _tuning,
            "work_path": _tuning,
        }
    )


def _tuning(on: On, setting: Setting) -> Outcome:
    what = job(on)
    if not what and on.get("aoe_tune_mode") == "offline":
        return _offline(on)
    if what == OLDER:
        return refused("3 is known to older CANN alone")
    if what == BUCKETS:
        return refused(BUCKET_SIZES)
    if on.device == "ascend":
        return _by_cann(on, what)
    if what == SUB_GRAPHS and on.device == "cpu":
        return refused(ELSEWHERE)
    found = {"graph.compilation": compilation(on)}
    if measured(on):
        if why := obstacle(on):
            return approximated(found, f"{why}; {SEARCHED} alone")
        found |= assignments_of(on)
    if setting.option.name == "aoe_config_file":
        left = [kind for kind in narrowed(on).get("tune_ops_type", ()) if kind not in TYPES]
        left += narrowed(on).get("feature", ())
        return approximated(found, f"nothing is tuned for {', '.join(left)}") if left else honoured(found)
    return honoured(found, MEASURED.format(PROBLEM[on.device]) if what == OPERATORS else "")


def _by_cann(on: On, what: str) -> Outcome:
    if what == SUB_GRAPHS:
        return refused("torchair has CANN tune single operators alone (2)")
    if not what:
        return as_it_is()
    return approximated({"torch.npu.graph_tuner": tuner(on)} | apart(on), f"graphs of static shape alone are tuned; {GRAPHS}")


def _offline(on: On) -> Outcome:
    if on.device == "ascend":
        if job_of_mode(on) != OPERATORS:
            return refused("torch_npu records single operators alone (2)")
        return approximated({"torch.npu.aoe_folder": recorded_in(on)}, RECORDED_BY_NPU)
    if job_of_mode(on) != OPERATORS:
        return refused(ELSEWHERE if on.device == "cpu" else NOT_RECORDED)
    if why := obstacle(on):
        return refused(why)
    return honoured(assignments_of(on), FOR_LATER.format(PROBLEM[on.device]))

"""Kernels are measured while the program runs, by msctx's own tuning and by inductor's, or later."""

from __future__ import annotations

from msctx.options import Setting
from msctx.options.kinds import Choice, Path
from msctx.options.option import Option, extension, session_option
from msctx.options.rules import NOT_MEASURED, TRUE, Forbids, Needs, Rule, When
from msctx.themes import shared_by_themes as shared
from msctx.themes.base import STAYS, On, Outcome, approximated, by_entry, honoured, inert, reason, refused
from msctx.themes.convolution_and_algorithm_policy import assignments_of, detail, obstacle, requested
from msctx.themes.graph import compilation

# fmt: off
JOBS = {
    "1": "sub-graphs: how operators are grouped and fused", "2": "single operators, such as matmuls and convolutions",
}
OPTIONS = (
    Option("aoe_tune_mode", Choice({
            "online": "variants of kernels are measured while the program runs",
            "offline": "nothing is measured; problems are recorded in work_path, for performance",
        }), example="online", also=("device_context.ascend.op_tuning.aoe_tune_mode",),
        help="Automatic tuning of kernels, now or later; aoe_config.job_type sets what is tuned."),
    Option("aoe_config.job_type", Choice(JOBS, {1: "1", 2: "2"}), default="2", example="1",
        also=("device_context.ascend.op_tuning.aoe_job_type",),
        help="What aoe_tune_mode tunes."),
    session_option("aoe_mode", Choice({
            **JOBS, "3": "known only to older CANN", "4": "the size of the buckets in which gradients are reduced",
        }, {1: "1", 2: "2", 3: "3", 4: "4"}), example="2", ge="ge.jobType",
        help="What is tuned automatically."),
    session_option("work_path", Path, default="./", example="tuning", ge="ge.tuningPath",
        help="The directory for the results of aoe_mode, and for what aoe_tune_mode=offline records; it must exist and be writable."),
    session_option("aoe_config_file", Path, example="aoe.json", ge="ge.aoe_config_file", content="AOE",
        help="A JSON file that narrows aoe_mode to operators by name or type, and sets how hard to search "
             "(tune_optimization_level O1 or O2)."),
    extension("tuning_file", Path, example="tuning.json", devices=("cpu", "cuda"), is_output=True,
        help="The file in which performance finds what was measured before, and keeps what it measures, in place of the one "
             "in the cache: to be committed with an experiment, so that the next run makes the same choices and measures "
             "nothing. It need not be there yet, nor its folder. A relative path in a YAML file is meant from the folder of "
             "that file."),
)

RULES: tuple[Rule, ...] = (
    Needs(When("aoe_config.job_type"), (When("aoe_tune_mode"),), "inert"),
    Needs(When("work_path"), (When("aoe_mode"), When("aoe_tune_mode", ("offline",))), "inert"),
    Needs(When("aoe_config_file"), (When("aoe_mode"),), "inert"),
    Forbids(When("aoe_tune_mode", ("online",)), When("deterministic", ("ON",)), "inert", NOT_MEASURED),
    Forbids(When("aoe_mode"), When("deterministic", ("ON",)), "inert", NOT_MEASURED),
    Forbids(When("aoe_tune_mode", ("offline",)), When("aoe_mode"), "inert", "aoe_mode tunes while the program runs"),
    Forbids(When("aoe_tune_mode", ("offline",)), When("batch_invariant", TRUE), "inert",
        "under batch_invariant=True no measurement is used: each batch size has a separate one"),
)
# fmt: on

TUNING = ("aoe_tune_mode", "aoe_mode")
ELSEWHERE = "inductor measures how operators are fused only on CUDA"
NOT_RECORDED = reason(
    "inductor measures a graph while it compiles it, and none that was recorded",
    "set aoe_tune_mode=online, and enable_compile_cache=True to keep what it finds for later runs",
)
FOR_LATER = "each {} is recorded in work_path/msctx_tuning.json, which performance measures"
RECORDED_BY_NPU = f"it {STAYS}; only operators that CANN compiles are recorded, for aoe"
PROBLEM = {"cpu": "convolution and matmul", "cuda": "convolution"}
SEARCHED = "inductor searches by coordinate descent"
MEASURED = f"each {{}} is measured once, for tuning_file; {SEARCHED}"


def translate(on: On, setting: Setting) -> Outcome | None:
    """The outcome of one of these options."""
    what = shared.job(on)
    if setting.option.name == "tuning_file":
        if not any(name == "performance" for _, name in requested(on)):
            fix = "set one, such as matmul_algo=performance"
            return inert("no algorithm is set to performance: nothing else is tuned", fix)
        each = "batch_invariant=True: each batch would have a separate entry, so none is used"
        return inert(each) if on.get("batch_invariant") else detail(on)
    hindered = [on.obstacles[name] for name in TUNING if name in on.obstacles]
    if hindered and (setting.option.name == "aoe_config.job_type" or not (what or on.get("aoe_tune_mode"))):
        return hindered[0]
    if not what and on.get("aoe_tune_mode") == "offline":
        return _offline(on)
    if what == shared.OLDER:
        return refused("3 is known only to older CANN", "set 2")
    if what == shared.BUCKETS:
        return refused("bucket sizes are not tuned", "set bucket_cap_mb of DistributedDataParallel")
    if on.device == "ascend":
        if what == shared.SUB_GRAPHS:
            return refused("torchair has CANN tune only single operators", "set 2")
        tuner = {"torch.npu.graph_tuner": shared.tuner(on)} | shared.apart(on)
        return approximated(tuner, f"only graphs of static shape are tuned; {shared.GRAPHS}")
    if what == shared.SUB_GRAPHS and on.device == "cpu":
        return refused(ELSEWHERE)
    found = {"graph.compilation": compilation(on)}
    if shared.measured(on):
        if why := obstacle(on):
            return approximated(found, f"{why}; {SEARCHED} alone")
        found |= assignments_of(on)
    if setting.option.name == "aoe_config_file":
        parts = on.content("aoe_config_file")
        idle = {*parts.get("tune_ops_type", ()), *parts.get("feature", ())} - {*shared.TYPES}
        entries = {(part, one): f"nothing is tuned for {one}" * (one in idle) for part in parts for one in parts[part]}
        return by_entry(entries, honoured(found))
    return honoured(found, MEASURED.format(PROBLEM[on.device]) if what == shared.OPERATORS else "")


def _offline(on: On) -> Outcome:
    if on.device == "ascend":
        if shared.job_of_mode(on) != shared.OPERATORS:
            return refused("torch_npu records only single operators", "set 2")
        return approximated({"torch.npu.aoe_folder": shared.recorded_in(on)}, RECORDED_BY_NPU)
    if shared.job_of_mode(on) != shared.OPERATORS:
        return refused(ELSEWHERE if on.device == "cpu" else NOT_RECORDED)
    if why := obstacle(on):
        return refused(why)
    return honoured(assignments_of(on), FOR_LATER.format(PROBLEM[on.device]))

"""What a session's ``run()`` does with the function that it is given, how batches reach it, and what is an error."""

from __future__ import annotations

from msctx.options import Setting
from msctx.options.grammars import AccelerateTrainMode, DeviceList
from msctx.options.kinds import Bool, Flag, Int
from msctx.options.option import extension, session_option
from msctx.options.rules import OF_TRAINING, Forbids, Needs, Rule, When, is_above_one, is_set
from msctx.themes.base import On, Outcome, approximated, as_it_is, honoured, refused, translates
from msctx.themes.common import GRAPHS, with_graphs
from msctx.themes.precision import POLICY, PRECISION_MODES, PRECISION_MODES_V2, policy

# fmt: off
OPTIONS = (
    session_option("graph_run_mode", Flag, default=1, example=0, ge="ge.graphRunMode",
        help="Whether run() of a session trains (1) or infers (0): with watched models in train or eval mode, and with gradients or "
             "in inference mode. What only makes sense in one of them, such as frozen_variable or gears of shapes, is refused in the "
             "other."),
    session_option("input_fusion_size", Int(0, 33554432), default=131072, example=262144, devices=("cuda", "ascend"),
        ge="ge.exec.input_fusion_size",
        help="Inputs of up to this many bytes are packed into one copy from host to device; 0 packs none. A CPU has no such "
             "copy."),
    session_option("iterations_per_loop", Int(1), default=1, example=10,
        help="How often run() of a session calls its function before the host looks at the device again. More than one "
             "excludes mix_compile_mode."),
    session_option("graph_max_parallel_model_num", Int(1, 2**31 - 1), default=1, example=4, ge="ge.graphMaxParallelModelNum",
        help="How many threads may be in run() of a session at the same time; others wait. Above 1 for inference only; older CANN "
             "allows 8 at most. "
             "More than one excludes static_memory_policy 2 and 4."),
    session_option("local_rank_id", Int(0, 7), example=0,
        help="The rank of this process among those of its machine when one of them loads the data for all: rank 0 prepares "
             "the batches of torch's DataLoader and sends them, the others receive. Needs local_device_list."),
    session_option("local_device_list", DeviceList, example="0,1",
        help="The processes of this machine, by local_rank_id, that share the batches of the process of local_rank_id=0; others load "
             "their own. Needs local_rank_id."),
    session_option("experimental_accelerate_train_mode", AccelerateTrainMode, example="fast1|step|0.9",
        help="Trains in low precision first and in full precision later, in run() of a session. Written as speed|trigger|ratio: fast "
             "lowers to float16, fast1 to bfloat16; step ends the phase once $STEP_NOW is that share of $TOTAL_STEP (0.2 to 0.9), "
             "loss once $LOSS_NOW is within that multiple of $TARGET_LOSS (1.01 to 1.5). The program sets the variables."),
    session_option("enable_data_pre_proc", Bool, default=False, example=True,
        help="Fetches batches ahead of the step on a thread of their own and copies them to the device meanwhile. "
             "Deprecated in CANN; iterations_per_loop above 1 rests on it."),
    extension("strict", Bool, example=True,
        help="Turns every option that would be refused or is inert (but those of a device that is not here) "
             "into an error before anything changes, and a switch that other code changed inside the scope into an error at "
             "exit. Without it each is a single warning."),
)

RULES: tuple[Rule, ...] = (
    Needs(When("local_rank_id", test=is_set), (When("local_device_list", test=is_set),)),
    Needs(When("local_device_list", test=is_set), (When("local_rank_id", test=is_set),)),
    Needs(When("graph_max_parallel_model_num", test=is_above_one, words="above 1"), (When("graph_run_mode", (0,)),)),
    Forbids(When("experimental_accelerate_train_mode"),
        When("precision_mode", tuple(m for m in PRECISION_MODES if m not in ("allow_fp32_to_fp16", "must_keep_origin_dtype"))),
        "refused", "it needs precision_mode=allow_fp32_to_fp16 or must_keep_origin_dtype, or none"),
    Forbids(When("experimental_accelerate_train_mode"),
        When("precision_mode_v2", tuple(m for m in PRECISION_MODES_V2 if m != "origin")), "refused",
        "it needs precision_mode_v2=origin, or none"),
    Forbids(When("experimental_accelerate_train_mode"), *OF_TRAINING),
)
# fmt: on

IN_RUN = "acts in run() of msctx.session"
LOW_PRECISION = {
    "cpu": "session.low_precision.cpu",
    "cuda": "session.low_precision.cuda",
    "ascend": "session.low_precision.ascend",
}
"""Device → the switch of the policy for the first part of a training."""
SHARED = (
    "only for torch's DataLoader in the thread that entered the context",
    "iterate over the same loaders in the same order in all processes, and stop at the same batch",
)
OWN_LOADER = (
    "a thread beside the program's data loader would draw other random numbers and change training",
    "prefetch with DataLoader(num_workers=…, prefetch_factor=…, pin_memory=True), and copy with "
    "tensor.to(device, non_blocking=True)",
)
OWN_COPIES = (
    "the program copies its inputs itself, each tensor where its code says so",
    "put small inputs into one tensor in the collate_fn, and copy that from pinned memory: DataLoader(pin_memory=True), "
    "tensor.to(device, non_blocking=True)",
)


translates("iterations_per_loop")(lambda on, setting: honoured({"session.iterations_per_loop": setting.value}, IN_RUN))
translates("enable_data_pre_proc")(lambda on, setting: refused(*OWN_LOADER) if setting.value else as_it_is())
translates("strict")(lambda on, setting: honoured())


@translates("graph_run_mode")
def _graph_run_mode(on: On, setting: Setting) -> Outcome:
    if setting.value:
        return honoured({"session.graph_run_mode": "training"}, IN_RUN)
    differs = f"{IN_RUN}; enable_small_channel stays as it is set: the forward pass has little use for it here"
    return approximated({"session.graph_run_mode": "inference"}, differs)


@translates("graph_max_parallel_model_num")
def _graph_max_parallel_model_num(on: On, setting: Setting) -> Outcome:
    assignments = {"session.graph_max_parallel_model_num": setting.value}
    if on.device == "cpu" or setting.value == 1:
        return honoured(assignments, IN_RUN)
    return approximated(assignments, f"{IN_RUN}; the threads share the device's stream, unless each takes one of its own")


@translates("experimental_accelerate_train_mode")
def _experimental_accelerate_train_mode(on: On, setting: Setting) -> Outcome:
    if on.facts.native:
        return refused(on.facts.native)
    speed, until, ratio = setting.value.split("|")
    requested = {"policy": policy(on, speed)[POLICY[on.device]], "until": until, "ratio": float(ratio)}
    return honoured({LOW_PRECISION[on.device]: requested}, IN_RUN)


@translates("local_rank_id", "local_device_list")
def _shared_batches(on: On, setting: Setting) -> Outcome:
    ranks = sorted(map(int, on.get("local_device_list", "0").split(",")))
    requested = {"rank": on.get("local_rank_id", 0), "ranks": ranks}
    return approximated({"torch.dataloader.shared": requested}, *SHARED)


@translates("input_fusion_size")
def _input_fusion_size(on: On, setting: Setting) -> Outcome:
    if on.device == "ascend":
        return honoured(with_graphs(on), GRAPHS)
    return refused(*OWN_COPIES) if setting.value else honoured(cause="PyTorch copies each tensor by itself")

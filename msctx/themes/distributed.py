"""Several ranks: how communication and computation overlap, and how long a process waits."""

from __future__ import annotations

from typing import Any

from msctx.options import Setting
from msctx.options.kinds import Bool, Choice, Int, TextKind
from msctx.options.option import ascend_option, session_option
from msctx.options.rules import OF_TRAINING, TRUE, Excludes, Forbids, Rule, When
from msctx.themes.base import STAYS, On, Outcome, approximated, as_it_is, honoured, inert, joined, reason, refused
from msctx.themes.shared_by_themes import LEFT_TO_NPU, SPEED_UP, apart


def _renamed(name: str) -> tuple[str, ...]:
    """Where later releases of MindSpore have a key of parallel_speed_up_json_path."""
    return (f"{SPEED_UP}.{name}", f"ascend_config.{SPEED_UP}.{name}")


# fmt: off
OPTIONS = (
    ascend_option("parallel_speed_up_json_path", TextKind("a path, or null for none", empty=True, null=True),
        default=None, example="parallel_speed_up.json", content="SPEED_UP",
        help="A JSON file of switches that let communication between devices overlap with computation, or that bundle "
             "collectives: enable_task_opt, enable_grad_comm_opt and others. null or empty text: none."),
    ascend_option("parallel_speed_up_json_path.recompute_comm_overlap", Bool, default=False, example=True,
        also=_renamed("recomputation_communication_overlap"),
        help="Lets activations that are recomputed in the backward pass be computed while communication is on its way. "
             "Without recomputation there is nothing to overlap."),
    ascend_option("parallel_speed_up_json_path.matmul_grad_comm_overlap", Bool, default=False, example=True,
        also=_renamed("grad_matmul_communication_overlap"),
        help="In the backward pass of a matmul: computes the gradient of the weight while the gradient of the input "
             "is communicated."),
    ascend_option("parallel_speed_up_json_path.enable_task_opt", Bool, default=False, example=True,
        also=_renamed("enable_communication_fusion"),
        help="Bundles collectives into fewer and larger ones."),
    ascend_option("parallel_speed_up_json_path.enable_grad_comm_opt", Bool, default=False, example=True,
        also=_renamed("grad_computation_allreduce_overlap"),
        help="Reduces the gradients of data-parallel training while the backward pass still computes those of earlier "
             "layers."),
    ascend_option("parallel_speed_up_json_path.enable_opt_shard_comm_opt", Bool, default=False, example=True,
        also=_renamed("computation_allgather_overlap"),
        help="Gathers weights that are sharded between devices ahead of the layer that needs them, while the forward pass "
             "computes. Needs a sharded optimizer."),
    ascend_option("parallel_speed_up_json_path.enable_concat_eliminate_opt", Bool, default=False, example=True,
        help="Removes concatenations from compiled graphs that only put together again what was split before, as happens "
             "when a batch is computed in two halves."),
    ascend_option("parallel_speed_up_json_path.enable_begin_end_inline_opt", Bool, default=False, example=True,
        help="Compiles the first and the last micro-batch of a pipeline into the surrounding graph instead of into separate graphs"
             ", so that more may overlap there. Needs pipeline parallelism."),
    ascend_option("parallel_speed_up_json_path.compute_communicate_fusion_level", Choice({
            0: "no fusion of computation with communication", 1: "only in the forward pass", 2: "only in the backward pass",
            3: "in both passes",
        }), default=0, example=3, devices=("cuda", "ascend"), also=_renamed("computation_communication_fusion_level"),
        help="Where a matmul and the collective before or after it become one kernel. A CPU has no such kernels."),
    session_option("hcom_parallel", Bool, default=True, example=False, ge="ge.hcomParallel",
        help="Whether gradients are reduced across devices while the backward pass still computes, or only after it, which "
             "can suit small models."),
    session_option("is_tailing_optimization", Bool, default=False, example=True, ge="ge.exec.isTailingOptimization",
        help="Lets the optimizer update the parameters whose gradients have been reduced already while the last ones are "
             "still on their way between devices."),
    session_option("hccl_timeout", Int(0, 2**31 - 1), default=1836, example=600, ge="ge.exec.hcclExecuteTimeOut",
        help="Seconds that a collective waits for the other ranks before it fails; 0 waits for ever. Must be shorter than "
             "stream_sync_timeout, which is in milliseconds."),
    session_option("op_wait_timeout", Int(1), default=120, example=60, ge="ge.exec.opWaitTimeout",
        help="Seconds that an operator waits for those it depends on, across streams or threads, before that is an error."),
    session_option("stream_sync_timeout", Int(-1, zero=False), default=-1, example=900000, ge="stream_sync_timeout",
        help="Milliseconds that waiting for a stream may take before it is an error; -1 waits for ever."),
    session_option("event_sync_timeout", Int(-1, zero=False), default=-1, example=600000, ge="event_sync_timeout",
        help="Milliseconds that waiting for an event may take before it is an error; -1 waits for ever."),
)

RULES: tuple[Rule, ...] = (
    Excludes(When("hccl_timeout", test=lambda v: v >= 0), When("stream_sync_timeout", test=lambda v: v >= 0),
        test=lambda seconds, milliseconds: seconds == 0 or seconds * 1000 >= milliseconds,
        why="hccl_timeout (seconds) must be shorter than stream_sync_timeout (milliseconds)"),
    Forbids(When("hcom_parallel", (True, False)), *OF_TRAINING),
    Forbids(When("is_tailing_optimization", TRUE), *OF_TRAINING),
)
# fmt: on

RECOMPUTE, MATMUL = "parallel_speed_up_json_path.recompute_comm_overlap", "parallel_speed_up_json_path.matmul_grad_comm_overlap"
GRADIENTS, HCOM = "parallel_speed_up_json_path.enable_grad_comm_opt", "hcom_parallel"
PASSES = ("raise_comms", "sink_waits")
"""Inductor's passes over a schedule: collectives as early as possible, waiting for them as late."""

DDP = "DistributedDataParallel models given to ctx.watch"
FSDP = "FSDP2 modules given to ctx.watch"
IN_CODE = "collectives in compiled code"
DETERMINISTIC = "under deterministic=ON inductor keeps the order of collectives"
BUCKETED = (
    "torch.inductor.bucket_all_gathers_fx",
    "torch.inductor.bucket_reduce_scatters_fx",
    "torch.inductor.bucket_all_reduces_fx",
)
OWN_KERNELS = ("torchair takes none of CANN's kernels for both", "call them, such as torch_npu.npu_mm_all_reduce_base")
# What would change the numbers.
UNSAFE = {
    "is_tailing_optimization": (
        "programs clip or unscale between backward() and step(): an earlier update would come before that",
        "without either, use torch.distributed.optim._apply_optimizer_in_backward",
    ),
    "parallel_speed_up_json_path.enable_begin_end_inline_opt": (
        "torch 2.13 computes wrong gradients where a torch.compiler.nested_compile_region is inlined only in some calls",
        "call the function itself for the first and the last micro-batch instead of the region",
    ),
}

NO_STREAMS = reason("a CPU has no streams and no events to wait for", "set hccl_timeout to limit how long collectives wait")
FIRST_GROUP = "with HCCL's first process group"
OF_STREAMS = "torch.npu.synchronize() waits for the whole device, which has its own limit (ACL_DEVICE_SYNC_TIMEOUT)"
NO_LIMIT = "CUDA limits no stream's wait; synchronize() of torch.cuda.Event is limited, as by event_sync_timeout"
BY_POLLING = "only synchronize() of streams and events is limited, and polls; not item(), torch.Event, whole devices"
BY_GLOO = "recv() in an existing gloo group keeps the timeout that the group was created with"
BY_NCCL = reason(
    "NCCL's watchdog ends the process and raises nothing", "the Flight Recorder and torchfrtrace name the missing rank"
)

AFTER_HCCL = 30
"""Seconds, as torch_npu has them between HCCL's limit and that of waits for events."""
WATCHDOG = f"torch_npu ends the process {AFTER_HCCL} s later"


def translate(on: On, setting: Setting) -> Outcome | None:
    """The outcome of one of these options."""
    name, value, device = setting.option.name, setting.value, on.device
    match name:
        case "parallel_speed_up_json_path":
            return honoured(cause="its keys are separate options") if value else as_it_is()
        case "parallel_speed_up_json_path.recompute_comm_overlap" | "parallel_speed_up_json_path.matmul_grad_comm_overlap":
            return _reordered(on, setting)
        case "parallel_speed_up_json_path.enable_task_opt":
            found = {"models.gradients_bundled": value} | dict.fromkeys(BUCKETED, "all" if value else "none")
            return _compiled(on, setting, found, f"{DDP}; {IN_CODE}")
        # both are one notion: where one of them is False, gradients are reduced after the backward pass
        case "parallel_speed_up_json_path.enable_grad_comm_opt" | "hcom_parallel":
            postponing = [name for name in (GRADIENTS, HCOM) if on.get(name) is False]
            if value and postponing:
                return inert(f"overridden by {postponing[0]}=False")
            return honoured({"models.gradients_postponed": bool(postponing)}, DDP)
        case "parallel_speed_up_json_path.enable_opt_shard_comm_opt":
            return honoured({"models.gathered_ahead_forward": value}, FSDP)
        case "parallel_speed_up_json_path.enable_concat_eliminate_opt":
            where = "in compiled code" + ("" if value else "; inductor's default patterns stay on")
            return _compiled(on, setting, {"torch.inductor.removes_concatenations": value}, where)
        case "parallel_speed_up_json_path.compute_communicate_fusion_level" if device == "ascend":
            return refused(*OWN_KERNELS) if value else as_it_is()
        case "parallel_speed_up_json_path.compute_communicate_fusion_level" if value in (1, 2):
            return refused("inductor fuses matmuls with collectives in both passes or in neither", "set 3 or 0")
        case "parallel_speed_up_json_path.compute_communicate_fusion_level":
            needs = "only all-gathers and reduce-scatters of groups with enable_symm_mem_for_group"
            found = {"torch.inductor._micro_pipeline_tp": value == 3}
            return _compiled(on, setting, found, IN_CODE, needs if value else "")
        case "parallel_speed_up_json_path.enable_begin_end_inline_opt" | "is_tailing_optimization":
            return refused(*UNSAFE[name]) if value else as_it_is()
        case "hccl_timeout":
            return _hccl_timeout(on, value)
        case "op_wait_timeout" | "stream_sync_timeout" | "event_sync_timeout" if device == "cpu":
            return as_it_is(NO_STREAMS) if value < 0 else refused(NO_STREAMS)
        case "op_wait_timeout" if device == "ascend":
            stays = f"HCCL_EVENT_TIMEOUT {STAYS}: torch_npu reads it once, {FIRST_GROUP}"
            return honoured({"env.HCCL_EVENT_TIMEOUT": str(value)}, stays)
        case "op_wait_timeout" | "event_sync_timeout":
            return _of_events(on, setting)
        case "stream_sync_timeout" if device == "ascend":
            return honoured({"env.ACL_STREAM_TIMEOUT": str(value)}, OF_STREAMS)
        case "stream_sync_timeout":
            return _polled("torch.cuda.stream_sync_timeout", value)
    return None


def _compiled(on: On, setting: Setting, found: dict[str, Any], where: str, differs: str = "") -> Outcome:
    found |= apart(on)
    differs = joined(differs, LEFT_TO_NPU if on.device == "ascend" and setting.value else "")
    return approximated(found, joined(where, differs)) if differs else honoured(found, where)


def _reordered(on: On, setting: Setting) -> Outcome:
    deterministic = on.get("deterministic") == "ON"
    moves = bool(on.get(RECOMPUTE) or on.get(MATMUL)) and not deterministic
    found: dict[str, Any] = {
        "torch.inductor.reorder_for_compute_comm_overlap": moves,
        "torch.inductor.reorder_for_compute_comm_overlap_passes": [*PASSES] if moves else [],
    }
    is_recompute = setting.option.name == RECOMPUTE
    if setting.value and deterministic:
        if not is_recompute:
            return refused(DETERMINISTIC)
        return approximated({"models.gathered_ahead_backward": True}, f"{FSDP}; {DETERMINISTIC}")
    if is_recompute:
        found["models.gathered_ahead_backward"] = setting.value
    fsdp = FSDP if is_recompute else ""
    if moves:
        other = MATMUL if is_recompute else RECOMPUTE
        return _compiled(on, setting, found, fsdp, f"all {IN_CODE}" if setting.value else f"{IN_CODE} still move for {other}")
    return _compiled(on, setting, found, joined(fsdp, IN_CODE))


def _hccl_timeout(on: On, limit: int) -> Outcome:
    """Of the process groups, and of those that are made inside the block; 0 is as long as the back ends can count."""
    has_hccl = on.device == "ascend" or "ascend" in on.facts.devices
    waits = limit + AFTER_HCCL * (has_hccl and limit > 0)
    assignments: dict[str, Any] = {"torch.distributed.timeout": waits}
    if on.device == "ascend":
        assignments["env.HCCL_EXEC_TIMEOUT"] = str(limit)
        return honoured(assignments, f"HCCL_EXEC_TIMEOUT {STAYS}; {WATCHDOG}")
    return approximated(assignments, BY_GLOO if on.device == "cpu" else BY_NCCL)


def _of_events(on: On, setting: Setting) -> Outcome:
    """Of the limits that waiting for events has, on CUDA two, the shorter one holds."""
    seconds = on.get("op_wait_timeout") if on.device == "cuda" else None
    limits = {"event_sync_timeout": on.get("event_sync_timeout", -1), "op_wait_timeout": 1000 * (seconds or -1)}
    least = min((name for name, limit in limits.items() if limit > 0), key=limits.__getitem__, default=setting.option.name)
    if limits[setting.option.name] != limits[least]:
        return inert(f"overridden by {least}={on.get(least)}, which is shorter")
    switch = "torch.npu.event_sync_timeout" if on.device == "ascend" else "torch.cuda.event_sync_timeout"
    return _polled(switch, limits[least], NO_LIMIT if setting.option.name == "op_wait_timeout" else BY_POLLING)


def _polled(switch: str, milliseconds: int, differs: str = BY_POLLING) -> Outcome:
    return approximated({switch: milliseconds}, differs) if milliseconds > 0 else honoured({switch: None})

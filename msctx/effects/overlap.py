"""How communication between ranks and computation overlap: parallel_speed_up_json_path with its keys, and options of sessions."""

from __future__ import annotations

from typing import Any

from msctx.effects.base import NOTHING_ASKED, Outcome, Want, approximated, effect, honoured, inert, refused
from msctx.effects.compilation import LEFT_TO_NPU, apart

RECOMPUTE, MATMUL = "parallel_speed_up_json_path.recompute_comm_overlap", "parallel_speed_up_json_path.matmul_grad_comm_overlap"
GRADIENTS, HCOM = "parallel_speed_up_json_path.enable_grad_comm_opt", "hcom_parallel"
FEWER_MESSAGES = "parallel_speed_up_json_path.enable_task_opt"
PASSES = ("raise_comms", "sink_waits")
"""Inductor's passes over a schedule: collectives as early as possible, waiting for them as late."""

ALONE = "without a process group there is no communication"
DDP = "gradients of DistributedDataParallel models that ctx.watch names"
FSDP = "FSDP2 modules of models that ctx.watch names, in the order in which they were registered"
IN_CODE = "collectives in code that torch.compile makes"
BY_CALLS = (
    "CANN's kernels for both are operators of their own that a program calls, such as torch_npu.npu_mm_all_reduce_base; torchair "
    "puts no others in their place"
)
AS_ONE = "inductor moves all collectives alike"
DETERMINISTIC = "under deterministic=ON inductor leaves the order of collectives as it is"


def _compiled(want: Want, found: dict[str, Any], reason: str, differs: str = "") -> Outcome:
    found |= apart(want)
    left = LEFT_TO_NPU if want.device == "ascend" and want.value else ""
    differs = "; ".join(filter(None, (differs, left)))
    return approximated(found, f"{reason}; {differs}") if differs else honoured(found, reason)


@effect("parallel_speed_up_json_path")
def speed_up(want: Want) -> Outcome:
    return honoured(reason="its keys are options of their own") if want.value else NOTHING_ASKED


@effect(GRADIENTS, HCOM)
def gradients(want: Want) -> Outcome:
    """Both are one notion: where one of them is False, gradients are reduced after the backward pass."""
    postponing = [name for name in (GRADIENTS, HCOM) if want.other(name) is False]
    if want.value and postponing:
        return inert(f"overridden by {postponing[0]}=False")
    return honoured({"models.gradients_postponed": bool(postponing)}, f"{DDP}; {ALONE}")


@effect(FEWER_MESSAGES)
def fewer_messages(want: Want) -> Outcome:
    which = "all" if want.value else "none"
    found = {
        "models.gradients_bundled": want.value,
        "torch.inductor.bucket_all_gathers_fx": which,
        "torch.inductor.bucket_reduce_scatters_fx": which,
        "torch.inductor.bucket_all_reduces_fx": which,
    }
    return _compiled(want, found, f"{DDP}; {IN_CODE}; {ALONE}")


@effect(RECOMPUTE, MATMUL)
def reordered(want: Want) -> Outcome:
    deterministic = want.other("deterministic") == "ON"
    on = bool(want.other(RECOMPUTE) or want.other(MATMUL)) and not deterministic
    found: dict[str, Any] = {
        "torch.inductor.reorder_for_compute_comm_overlap": on,
        "torch.inductor.reorder_for_compute_comm_overlap_passes": [*PASSES] if on else [],
    }
    is_recompute = want.option.name == RECOMPUTE
    if want.value and deterministic:
        if not is_recompute:
            return refused(DETERMINISTIC)
        return approximated({"models.gathered_ahead_backward": True}, f"{FSDP}; {DETERMINISTIC}; {ALONE}")
    if is_recompute:
        found["models.gathered_ahead_backward"] = want.value
    differs = AS_ONE if want.value else ""
    if not want.value and on:
        differs = f"{AS_ONE}: {MATMUL if is_recompute else RECOMPUTE} is on"
    where = f"{FSDP}; {IN_CODE}" if is_recompute else IN_CODE
    return _compiled(want, found, f"{where}; {ALONE}", differs)


@effect("parallel_speed_up_json_path.enable_opt_shard_comm_opt")
def gathered_ahead(want: Want) -> Outcome:
    return honoured({"models.gathered_ahead_forward": want.value}, f"{FSDP}; {ALONE}")


@effect("parallel_speed_up_json_path.enable_concat_eliminate_opt")
def concatenations(want: Want) -> Outcome:
    own = "code that torch.compile makes" + ("" if want.value else "; patterns that inductor replaces unasked are left on")
    return _compiled(want, {"torch.inductor.removes_concatenations": want.value}, own)


@effect("parallel_speed_up_json_path.compute_communicate_fusion_level")
def fused(want: Want) -> Outcome:
    if want.device == "ascend":
        return refused(BY_CALLS) if want.value else NOTHING_ASKED
    if want.value in (1, 2):
        return refused("inductor fuses products with collectives in both passes or in neither: 3 or 0")
    found = {"torch.inductor._micro_pipeline_tp": want.value == 3}
    needs = "products beside an all-gather or a reduce-scatter over one group, after enable_symm_mem_for_group(its name)"
    return _compiled(want, found, f"{IN_CODE}; {ALONE}", needs if want.value else "")


UNSAFE = {
    "is_tailing_optimization": "an update before the last gradients are there would come before what programs do between "
    "backward() and step(), such as clipping and unscaling. A program that does neither can use "
    "torch.distributed.optim._apply_optimizer_in_backward",
    "parallel_speed_up_json_path.enable_begin_end_inline_opt": "torch 2.13 computes wrong gradients where some calls of a "
    "torch.compiler.nested_compile_region are part of the graph around and others are not. Call the function itself for the first "
    "and the last micro-batch instead of the region",
}


@effect(*UNSAFE)
def unsafe(want: Want) -> Outcome:
    """What would change the numbers."""
    return refused(UNSAFE[want.option.name]) if want.value else NOTHING_ASKED

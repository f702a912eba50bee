"""What a session's ``run()`` does with the function that it is given, and the device that a session is bound to."""

from __future__ import annotations

from msctx.effects.base import Outcome, Want, approximated, effect, honoured, refused
from msctx.effects.device import CURRENT, is_target
from msctx.effects.precision_mode import lowered

IN_RUN = "acts in run() of msctx.session"
LOW_PRECISION = {
    "cpu": "session.low_precision.cpu",
    "cuda": "session.low_precision.cuda",
    "ascend": "session.low_precision.ascend",
}
"""Device → the switch of the policy for the first part of a training."""
SHARED = (
    "only for torch's DataLoader in the thread that entered the context. All processes iterate over the same loaders in the same "
    "order and stop at the same batch"
)


@effect("graph_run_mode")
def graph_run_mode(want: Want) -> Outcome:
    if want.value:
        return honoured({"session.graph_run_mode": "training"}, IN_RUN)
    differs = f"{IN_RUN}; enable_small_channel stays as it is set: the forward pass has little use for it here"
    return approximated({"session.graph_run_mode": "inference"}, differs)


@effect("session_device_id")
def session_device_id(want: Want) -> Outcome | None:
    """The CPU has one device; on the others the id becomes the current device of the thread."""
    target = is_target(want)
    if target is False:
        return None
    if want.device == "cpu":
        if target is None and set(want.facts.devices) != {"cpu"}:
            return None
        return honoured() if want.value == 0 else approximated({}, "there is one CPU device: any id means it")
    return honoured({CURRENT[want.device]: want.value})


@effect("iterations_per_loop")
def iterations_per_loop(want: Want) -> Outcome:
    return honoured({"session.iterations_per_loop": want.value}, IN_RUN)


@effect("graph_max_parallel_model_num")
def graph_max_parallel_model_num(want: Want) -> Outcome:
    assignments = {"session.graph_max_parallel_model_num": want.value}
    if want.device == "cpu" or want.value == 1:
        return honoured(assignments, IN_RUN)
    return approximated(assignments, f"{IN_RUN}; the threads share the device's stream, unless each takes one of its own")


@effect("experimental_accelerate_train_mode")
def experimental_accelerate_train_mode(want: Want) -> Outcome:
    if want.facts.native:
        return refused(want.facts.native)
    speed, until, ratio = want.value.split("|")
    asked = {"policy": lowered(want, speed), "until": until, "ratio": float(ratio)}
    return honoured({LOW_PRECISION[want.device]: asked}, IN_RUN)


@effect("local_rank_id", "local_device_list")
def shared_batches(want: Want) -> Outcome:
    ranks = sorted(map(int, want.other("local_device_list", "0").split(",")))
    asked = {"rank": want.other("local_rank_id", 0), "ranks": ranks}
    return approximated({"torch.dataloader.shared": asked}, SHARED)

"""What a session's ``run()`` does with the function that it is given, how batches reach it, and what is an error."""

from __future__ import annotations

from msctx.options import Setting
from msctx.themes.base import On, Outcome, Outcomes, approximated, as_it_is, honoured, refused
from msctx.themes.common import GRAPHS, with_graphs
from msctx.themes.precision import lowered

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
OWN_LOADER = (
    "the program's data loader fetches the batches: a thread of msctx's beside it would run the dataset's code at other times, which "
    "draws other random numbers and changes what is trained. Prefetch with DataLoader(num_workers=…, prefetch_factor=…, "
    "pin_memory=True), and copy with tensor.to(device, non_blocking=True)"
)
OWN_COPIES = (
    "the program copies its inputs itself, each tensor where its code says so. Put small inputs into one tensor in the collate_fn, "
    "and copy that from pinned memory: DataLoader(pin_memory=True), tensor.to(device, non_blocking=True)"
)


def translate(on: On) -> Outcomes:
    return on.each(
        {
            "graph_run_mode": _graph_run_mode,
            "iterations_per_loop": _iterations_per_loop,
            "graph_max_parallel_model_num": _graph_max_parallel_model_num,
            "experimental_accelerate_train_mode": _experimental_accelerate_train_mode,
            "local_rank_id": _shared_batches,
            "local_device_list": _shared_batches,
            "enable_data_pre_proc": _enable_data_pre_proc,
            "input_fusion_size": _input_fusion_size,
            "strict": _strict,
        }
    )


def _graph_run_mode(on: On, setting: Setting) -> Outcome:
    if setting.value:
        return honoured({"session.graph_run_mode": "training"}, IN_RUN)
    differs = f"{IN_RUN}; enable_small_channel stays as it is set: the forward pass has little use for it here"
    return approximated({"session.graph_run_mode": "inference"}, differs)


def _iterations_per_loop(on: On, setting: Setting) -> Outcome:
    return honoured({"session.iterations_per_loop": setting.value}, IN_RUN)


def _graph_max_parallel_model_num(on: On, setting: Setting) -> Outcome:
    assignments = {"session.graph_max_parallel_model_num": setting.value}
    if on.device == "cpu" or setting.value == 1:
        return honoured(assignments, IN_RUN)
    return approximated(assignments, f"{IN_RUN}; the threads share the device's stream, unless each takes one of its own")


def _experimental_accelerate_train_mode(on: On, setting: Setting) -> Outcome:
    if on.facts.native:
        return refused(on.facts.native)
    speed, until, ratio = setting.value.split("|")
    asked = {"policy": lowered(on, speed), "until": until, "ratio": float(ratio)}
    return honoured({LOW_PRECISION[on.device]: asked}, IN_RUN)


def _shared_batches(on: On, setting: Setting) -> Outcome:
    ranks = sorted(map(int, on.get("local_device_list", "0").split(",")))
    asked = {"rank": on.get("local_rank_id", 0), "ranks": ranks}
    return approximated({"torch.dataloader.shared": asked}, SHARED)


def _enable_data_pre_proc(on: On, setting: Setting) -> Outcome:
    return refused(OWN_LOADER) if setting.value else as_it_is()


def _input_fusion_size(on: On, setting: Setting) -> Outcome:
    if on.device == "ascend":
        return honoured(with_graphs(on), GRAPHS)
    return refused(OWN_COPIES) if setting.value else honoured(reason="PyTorch copies each tensor by itself")


def _strict(on: On, setting: Setting) -> Outcome:
    return honoured()

"""profiling_mode, profiling_options: what torch.profiler records, and where that goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msctx.effects.base import Outcome, Want, approximated, effect, honoured
from msctx.options import option_of

RECORDED = (
    "records the first 100 steps (20 with aicpu) of the thread that enters, with their backward passes, communication and ranges, "
    "and writes them at exit"
)
ON_HOST = "what the host does is recorded by torch.profiler; torch_npu's own profiler is not run"
NO_POINTS = "fp_point and bp_point are left out: torch.profiler does not bound phases"
OPERATORS = "without task_trace the trace has operators, too; the table is not written"
NO_COUNTERS = "aic_metrics is left out: it chooses counters of an NPU's cores"


@effect("profiling_mode")
def profiling_mode(want: Want) -> Outcome:
    if not want.value:
        return honoured({"torch.profiler": None})
    assignments = {"torch.profiler": _recorder(_asked(want), want.other("reserve_class_name_in_scope"))}
    return approximated(assignments, f"{RECORDED}; {ON_HOST}") if want.device == "ascend" else honoured(assignments, RECORDED)


@effect("profiling_options")
def profiling_options(want: Want) -> Outcome:
    if want.other("profiling_mode") is False:  # as in a scope that pauses the one around it
        return Outcome("inert", {}, "profiling_mode is off", expected=True)
    part, asked = "part of profiling_mode=True", want.content or {}
    left = [NO_COUNTERS] * ("aic_metrics" in asked)
    if asked.get("fp_point") or asked.get("bp_point"):
        left.append(NO_POINTS)
    if not _recorder(asked)["operators"]:
        left.append(OPERATORS)
    return approximated({}, "; ".join([part, *left])) if left else honoured(reason=part)


def _asked(want: Want) -> Mapping[str, str]:
    """The keys of profiling_options; those of CANN's own text where it is not set."""
    setting = want.settings.get("profiling_options", want.device)
    if setting is not None:
        return setting.content or {}
    option = option_of("profiling_options")
    assert option.format is not None
    found: dict[str, str] = option.format.parse(option.default, "default").data
    return found


def _recorder(asked: Mapping[str, str], modules: bool | None = None) -> dict[str, Any]:
    """A key that is left out is off; but a text that names neither trace means both, or it would record nothing.

    *modules*: whether the ranges of modules have classes; None: modules have no ranges.
    """
    tasks = asked.get("task_trace", asked.get("task_time"))
    steps = asked.get("training_trace")
    if tasks is None and steps is None:
        tasks = steps = "on"
    limit = asked.get("storage_limit")
    return {
        "output": asked.get("output", "./"),
        "storage_limit": limit and int(limit.removesuffix("MB")),
        "steps": steps == "on",
        "operators": tasks in ("on", "l0", "l1"),
        "shapes": tasks in ("on", "l1"),
        "stacks": asked.get("aicpu") == "on",
        "modules": modules,
    }

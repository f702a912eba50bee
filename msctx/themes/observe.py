"""What shows the inside of a run: dumps, overflow, errors, the recorder, the watchdog, printed values, profiles."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from msctx.options import Setting, option_of
from msctx.options.grammars import layers_in
from msctx.options.observation import Dump, ErrorDump, Overflow, Recorder, Watchdog
from msctx.themes.base import STAYS, On, Outcome, Outcomes, approximated, as_it_is, honoured, refused
from msctx.themes.common import with_graphs

OBSERVERS = (
    "session.enable_dump",
    "dump_config",
    "enable_dump_debug",
    "enable_exception_dump",
    "exception_dump",
    "env_config_path.rdr.enable",
    "op_timeout",
    "op_execute_timeout",
    "deterministic_except",
)
"""The options that have the native core watch operators."""
BY_CANN = f"what CANN writes itself {STAYS}, since it reads that once: TORCH_ACL_INIT_CONFIG_PATH"
UNSEEN = "operators that torch.compile has fused are not seen one by one"
NO_WORKSPACE = "no workspace is saved: operators have freed theirs when they raise"
OF_GRAPHS = (
    "CANN dumps graphs, those compiled under the latest settings alone; torchair lists them in ge_dump_data_json/ in the working "
    "directory"
)
COPIED = "each tensor is copied to the host, which waits for the device; not for code that a CUDA graph captures"


def translate(on: On) -> Outcomes:
    return on.each(
        {
            **dict.fromkeys(
                ("session.enable_dump", "dump_step", "dump_mode", "dump_data", "dump_layer", "dump_format"), _dumping
            ),
            **dict.fromkeys(("enable_dump_debug", "dump_debug_mode"), _overflowing),
            "dump_path": _dump_path,
            "dump_config": _dump_config,
            **dict.fromkeys(("enable_exception_dump", "exception_dump"), _enable_exception_dump),
            "env_config_path": _env_config_path,
            **dict.fromkeys(("env_config_path.rdr.enable", "env_config_path.rdr.mode", "env_config_path.rdr.path"), _recording),
            **dict.fromkeys(("op_timeout", "op_execute_timeout"), _op_timeout),
            "print_file_path": _print_file_path,
            "replica_check": _replica_check,
            "check_bprop": _check_bprop,
            "check_bprop_values": _check_bprop_values,
            "profiling_mode": _profiling_mode,
            "profiling_options": _profiling_options,
        }
    )


def dump(on: On) -> Dump | None:
    """The dump that all its options together ask for."""
    if not on.get("session.enable_dump") or not on.get("dump_path"):
        return None
    return Dump(
        path=on.get("dump_path"),
        steps=on.get("dump_step", ""),
        mode=on.get("dump_mode", "output"),
        data=on.get("dump_data", "tensor"),
        layers=tuple(layers_in(on.get("dump_layer", ""))),
        layout=on.get("dump_format", "mindspore"),
    )


def overflow(on: On) -> Overflow | None:
    if not on.get("enable_dump_debug") or not on.get("dump_path"):
        return None
    return Overflow(path=on.get("dump_path"), mode=on.get("dump_debug_mode", "all"))


def _dumped(on: On, assignments: dict[str, Any]) -> Outcome:
    """Eager operators by msctx, graphs by CANN."""
    if on.device != "ascend" or dump(on) is None:
        return _seen(on, assignments)
    outcome = _seen(on, assignments | with_graphs(on))
    return replace(outcome, reason=f"{outcome.reason}; {OF_GRAPHS}") if outcome.assignments else outcome


def _seen(on: On, assignments: dict[str, Any], *, reads: bool = True) -> Outcome:
    """*reads*: whether that needs the values of tensors."""
    if on.facts.native:
        return refused(on.facts.native)
    return approximated(assignments, f"{UNSEEN}; {COPIED}" if reads and on.device != "cpu" else UNSEEN)


def _dumping(on: On, setting: Setting) -> Outcome:
    found = dump(on)
    if found is None and setting.option.name == "dump_format" and (of_file := on.settings.get("dump_config")) is not None:
        return _dump_config(on, of_file)
    return honoured({"observers.dump": None}) if found is None else _dumped(on, {"observers.dump": found})


def _overflowing(on: On, setting: Setting) -> Outcome:
    found = overflow(on)
    return honoured({"observers.overflow": None}) if found is None else _seen(on, {"observers.overflow": found})


def _dump_path(on: On, setting: Setting) -> Outcome:
    both = {"observers.dump": dump(on), "observers.overflow": overflow(on)}
    return _dumped(on, both) if any(both.values()) else as_it_is()


SIDES = ("all", "input", "output")
DATA = {"tensor": "tensor", "statistic": "stats", "full": "full"}
LEFT_OUT = {
    "sample_mode": "sample_mode is ignored: tensors are dumped whole",
    "stat_calc_mode": "stat_calc_mode is ignored: statistics are computed on the host",
}
"""Keys without effect here."""
OF_MINDSPORE = {
    "net_name": "msProbe's layout has no place for net_name",
    "save_kernel_args": "msProbe's layout has no place for save_kernel_args",
    "statistic_category": "msProbe's layout always has Max, Min, Mean and Norm; of statistic_category it takes only md5, as a CRC-32",
}
"""Keys that have no effect, or another one, in msProbe's layout."""
OF_DUMPS = {"iteration": "all", "initial_iteration": 0, "dump_mode": 0, "input_output": 0, "saved_data": "tensor"}
"""Keys, and what they are when left out, that select what is dumped, and no more."""
STATISTICS = ("max", "min", "l2norm")
"""MindSpore's, where its file names none."""


def _dump_config(on: On, setting: Setting) -> Outcome:
    """op_debug_mode: 0 dumps, 3 looks for overflow, 4 keeps what goes into an operator that raises."""
    content = setting.content or {}
    given, more = content.get("common_dump_settings", {}), content.get("e2e_dump_settings", {})
    if not more.get("enable", True):
        return as_it_is()
    mode, path = given.get("op_debug_mode", 0), given.get("path", "")
    if mode in (3, 4):
        overflows = Overflow(path, most=given.get("overflow_number", 0), option="dump_config")
        outcome = _seen(
            on, {"observers.overflow": overflows} if mode == 3 else {"observers.errors": ErrorDump(1, path, "dump_config")}
        )
        left = [key for key, default in OF_DUMPS.items() if (given.get(key) or default) != default]
        unused = f"op_debug_mode {mode} watches all operators in all steps; ignored: {', '.join(left)}"
        return replace(outcome, reason=f"{outcome.reason}; {unused}") if left and outcome.assignments else outcome
    found = Dump(
        path=path,
        steps="" if given.get("iteration", "all") == "all" else given["iteration"],
        mode=SIDES[given.get("input_output", 0)],
        data=DATA[given.get("saved_data", "tensor")],
        layers=tuple(layers_in(" ".join(given.get("kernels", ())))) if given.get("dump_mode", 0) == 1 else (),
        marked=given.get("dump_mode", 0) == 2,
        option="dump_config",
        layout=on.get("dump_format", "mindspore"),
        net=given.get("net_name", "Net"),
        columns=tuple(given.get("statistic_category") or STATISTICS),
        first_step=given.get("initial_iteration", 0),
        ranks=tuple(given.get("support_device", ())),
        arguments=more.get("save_kernel_args", False),
    )
    outcome = _seen(on, {"observers.dump": found})
    left = [why for key, why in LEFT_OUT.items() if (given | more).get(key) not in (None, 0, False, "host", [])]
    if given.get("kernels") and given.get("dump_mode", 0) != 1:
        left.append("kernels applies only with dump_mode 1")
    if given.get("statistic_category") and found.data == "tensor" and found.layout == "mindspore":
        left.append("statistic_category applies only with saved_data statistic or full")
    if found.layout == "msprobe":
        left += [why for key, why in OF_MINDSPORE.items() if (given | more).get(key)]
    return replace(outcome, reason="; ".join([outcome.reason, *left]))


def _enable_exception_dump(on: On, setting: Setting) -> Outcome:
    """Both are one notion."""
    level = int(setting.value)
    by_cann = {"torch.npu.exception_dump": str(level)} if on.device == "ascend" else {}
    if not level:
        return honoured({"observers.errors": None} | by_cann, BY_CANN if by_cann else "")
    outcome = _seen(on, {"observers.errors": ErrorDump(level)} | by_cann)
    more = [NO_WORKSPACE, *([BY_CANN] if by_cann else [])] if outcome.assignments else []
    return replace(outcome, reason="; ".join([outcome.reason, *more]))


def _env_config_path(on: On, setting: Setting) -> Outcome:
    return honoured(reason="its keys are options of their own")


def _recording(on: On, setting: Setting) -> Outcome:
    if not on.get("env_config_path.rdr.enable"):
        return honoured({"observers.recorder": None})
    mode, path = on.get("env_config_path.rdr.mode", 1), on.get("env_config_path.rdr.path", "./")
    if not os.path.isabs(path) and os.path.normpath(path) != ".":
        if setting.option.name == "env_config_path.rdr.path":
            return refused("MindSpore accepts absolute paths only; the files go to ./")
        path = "./"
    return _seen(on, {"observers.recorder": Recorder(path=path, mode=mode)}, reads=False)


def _op_timeout(on: On, setting: Setting) -> Outcome:
    """Both are one notion, and there is one watchdog: the shortest one of all devices that are here counts."""
    devices = {*on.facts.devices, on.device}
    names = ("op_timeout", "op_execute_timeout")
    found = [on.source.get(name, device) for name in names for device in devices]
    limits = [setting.value for setting in found if setting is not None and setting.value]
    by_device: dict[str, Any] = {}
    if on.device == "ascend":
        own = [limit for name in names if (limit := on.get(name))]
        by_device = {"torch.npu.op_timeout": min(own) if own else None}
    if not limits:
        return honoured({"observers.watchdog": None} | by_device)
    assignments = {"observers.watchdog": Watchdog(min(limits))} | by_device
    if on.device == "cpu" or on.facts.native:
        return _seen(on, assignments, reads=False)
    if by_device:
        return approximated(assignments, "CANN ends operators of the device; the host's time is watched, too")
    return approximated(
        assignments, "the time that the host takes to launch or to wait for an operator is watched, not the device's"
    )


def _print_file_path(on: On, setting: Setting) -> Outcome:
    return honoured({"observers.print_file": setting.value})


def _replica_check(on: On, setting: Setting) -> Outcome:
    return honoured({"observers.replicas": setting.value or None})


ROUNDED_OFF = "torch_npu casts to float64 give float32, in which small differences are rounded off"


def _check_bprop(on: On, setting: Setting) -> Outcome:
    return _checks({"observers.check_bprop": setting.value})


def _check_bprop_values(on: On, setting: Setting) -> Outcome:
    if on.device == "ascend":
        return refused(ROUNDED_OFF) if setting.value else as_it_is()
    return _checks({"observers.check_bprop_values": setting.value})


def _checks(assignments: dict[str, bool]) -> Outcome:
    """torch.compile takes a Function into its graph, where nothing is left that returns gradients of its own when it runs."""
    if not any(assignments.values()):
        return honoured(assignments)
    return approximated(
        assignments,
        "Functions in compiled code (torch.compile, compiled autograd) are checked where torch traces them, not when the code runs",
    )


RECORDED = (
    "records the first 100 steps (20 with aicpu) of the thread that enters, with their backward passes, communication and ranges, "
    "and writes them at exit"
)
ON_HOST = "what the host does is recorded by torch.profiler; torch_npu's own profiler is not run"
NO_POINTS = "fp_point and bp_point are left out: torch.profiler does not bound phases"
OPERATORS = "without task_trace the trace has operators, too; the table is not written"
NO_COUNTERS = "aic_metrics is left out: it chooses counters of an NPU's cores"


def _profiling_mode(on: On, setting: Setting) -> Outcome:
    if not setting.value:
        return honoured({"torch.profiler": None})
    assignments = {"torch.profiler": _recorder(_asked(on), on.get("reserve_class_name_in_scope"))}
    return approximated(assignments, f"{RECORDED}; {ON_HOST}") if on.device == "ascend" else honoured(assignments, RECORDED)


def _profiling_options(on: On, setting: Setting) -> Outcome:
    part, asked = "part of profiling_mode=True", setting.content or {}
    left = [NO_COUNTERS] * ("aic_metrics" in asked)
    if asked.get("fp_point") or asked.get("bp_point"):
        left.append(NO_POINTS)
    if not _recorder(asked)["operators"]:
        left.append(OPERATORS)
    return approximated({}, "; ".join([part, *left])) if left else honoured(reason=part)


def _asked(on: On) -> Mapping[str, str]:
    """The keys of profiling_options; those of CANN's own text where it is not set."""
    if (setting := on.settings.get("profiling_options")) is not None:
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

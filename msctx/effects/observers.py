"""What shows the inside of a run: dumps, overflow, errors, the recorder, the watchdog, printed values, checked gradients."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from msctx.effects.base import NOTHING_ASKED, STAYS, Outcome, Want, approximated, effect, honoured, refused
from msctx.effects.graph_engine import with_graphs
from msctx.options.grammars import layers_in
from msctx.options.observation import Dump, ErrorDump, Overflow, Recorder, Watchdog

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


def dump(want: Want) -> Dump | None:
    """The dump that all its options together ask for."""
    if not want.other("session.enable_dump") or not want.other("dump_path"):
        return None
    return Dump(
        path=want.other("dump_path"),
        steps=want.other("dump_step", ""),
        mode=want.other("dump_mode", "output"),
        data=want.other("dump_data", "tensor"),
        layers=tuple(layers_in(want.other("dump_layer", ""))),
        layout=want.other("dump_format", "mindspore"),
    )


def overflow(want: Want) -> Overflow | None:
    if not want.other("enable_dump_debug") or not want.other("dump_path"):
        return None
    return Overflow(path=want.other("dump_path"), mode=want.other("dump_debug_mode", "all"))


def _dumped(want: Want, assignments: dict[str, Any]) -> Outcome:
    """Eager operators by msctx, graphs by CANN."""
    if want.device != "ascend" or dump(want) is None:
        return _seen(want, assignments)
    outcome = _seen(want, assignments | with_graphs(want))
    return replace(outcome, reason=f"{outcome.reason}; {OF_GRAPHS}") if outcome.assignments else outcome


def _seen(want: Want, assignments: dict[str, Any], *, reads: bool = True) -> Outcome:
    """*reads*: whether that needs the values of tensors."""
    if want.facts.native:
        return refused(want.facts.native)
    return approximated(assignments, f"{UNSEEN}; {COPIED}" if reads and want.device != "cpu" else UNSEEN)


@effect("session.enable_dump", "dump_step", "dump_mode", "dump_data", "dump_layer", "dump_format")
def dumping(want: Want) -> Outcome:
    found = dump(want)
    if found is None and want.option.name == "dump_format" and (of_file := want.in_force("dump_config")) is not None:
        return dump_config(replace(want, option=of_file.option, value=of_file.value))
    return honoured({"observers.dump": None}) if found is None else _dumped(want, {"observers.dump": found})


@effect("enable_dump_debug", "dump_debug_mode")
def overflowing(want: Want) -> Outcome:
    found = overflow(want)
    return honoured({"observers.overflow": None}) if found is None else _seen(want, {"observers.overflow": found})


@effect("dump_path")
def dump_path(want: Want) -> Outcome:
    both = {"observers.dump": dump(want), "observers.overflow": overflow(want)}
    return _dumped(want, both) if any(both.values()) else NOTHING_ASKED


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


@effect("dump_config")
def dump_config(want: Want) -> Outcome:
    """op_debug_mode: 0 dumps, 3 looks for overflow, 4 keeps what goes into an operator that raises."""
    content = want.content or {}
    given, more = content.get("common_dump_settings", {}), content.get("e2e_dump_settings", {})
    if not more.get("enable", True):
        return NOTHING_ASKED
    mode, path = given.get("op_debug_mode", 0), given.get("path", "")
    if mode in (3, 4):
        overflows = Overflow(path, most=given.get("overflow_number", 0), option="dump_config")
        outcome = _seen(
            want, {"observers.overflow": overflows} if mode == 3 else {"observers.errors": ErrorDump(1, path, "dump_config")}
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
        layout=want.other("dump_format", "mindspore"),
        net=given.get("net_name", "Net"),
        columns=tuple(given.get("statistic_category") or STATISTICS),
        first_step=given.get("initial_iteration", 0),
        ranks=tuple(given.get("support_device", ())),
        arguments=more.get("save_kernel_args", False),
    )
    outcome = _seen(want, {"observers.dump": found})
    left = [why for key, why in LEFT_OUT.items() if (given | more).get(key) not in (None, 0, False, "host", [])]
    if given.get("kernels") and given.get("dump_mode", 0) != 1:
        left.append("kernels applies only with dump_mode 1")
    if given.get("statistic_category") and found.data == "tensor" and found.layout == "mindspore":
        left.append("statistic_category applies only with saved_data statistic or full")
    if found.layout == "msprobe":
        left += [why for key, why in OF_MINDSPORE.items() if (given | more).get(key)]
    return replace(outcome, reason="; ".join([outcome.reason, *left]))


@effect("enable_exception_dump", "exception_dump")
def enable_exception_dump(want: Want) -> Outcome:
    """Both are one notion."""
    level = int(want.value)
    by_cann = {"torch.npu.exception_dump": str(level)} if want.device == "ascend" else {}
    if not level:
        return honoured({"observers.errors": None} | by_cann, BY_CANN if by_cann else "")
    outcome = _seen(want, {"observers.errors": ErrorDump(level)} | by_cann)
    more = [NO_WORKSPACE, *([BY_CANN] if by_cann else [])] if outcome.assignments else []
    return replace(outcome, reason="; ".join([outcome.reason, *more]))


@effect("env_config_path")
def env_config_path(want: Want) -> Outcome:
    return honoured(reason="its keys are options of their own")


@effect("env_config_path.rdr.enable", "env_config_path.rdr.mode", "env_config_path.rdr.path")
def recording(want: Want) -> Outcome:
    if not want.other("env_config_path.rdr.enable"):
        return honoured({"observers.recorder": None})
    mode, path = want.other("env_config_path.rdr.mode", 1), want.other("env_config_path.rdr.path", "./")
    if not os.path.isabs(path) and os.path.normpath(path) != ".":
        if want.option.name == "env_config_path.rdr.path":
            return refused("MindSpore accepts absolute paths only; the files go to ./")
        path = "./"
    return _seen(want, {"observers.recorder": Recorder(path=path, mode=mode)}, reads=False)


@effect("op_timeout", "op_execute_timeout")
def op_timeout(want: Want) -> Outcome:
    """Both are one notion, and there is one watchdog: the shortest one of all devices that are here counts."""
    devices = {*want.facts.devices, want.device}
    names = ("op_timeout", "op_execute_timeout")
    found = [want.settings.get(name, device) for name in names for device in devices]
    limits = [setting.value for setting in found if setting is not None and setting.value]
    by_device: dict[str, Any] = {}
    if want.device == "ascend":
        own = [limit for name in names if (limit := want.other(name))]
        by_device = {"torch.npu.op_timeout": min(own) if own else None}
    if not limits:
        return honoured({"observers.watchdog": None} | by_device)
    assignments = {"observers.watchdog": Watchdog(min(limits))} | by_device
    if want.device == "cpu" or want.facts.native:
        return _seen(want, assignments, reads=False)
    if by_device:
        return approximated(assignments, "CANN ends operators of the device; the host's time is watched, too")
    return approximated(
        assignments, "the time that the host takes to launch or to wait for an operator is watched, not the device's"
    )


@effect("print_file_path")
def print_file_path(want: Want) -> Outcome:
    return honoured({"observers.print_file": want.value})


@effect("replica_check")
def replica_check(want: Want) -> Outcome:
    return honoured({"observers.replicas": want.value or None})


ROUNDED_OFF = "torch_npu casts to float64 give float32, in which small differences are rounded off"


@effect("check_bprop")
def check_bprop(want: Want) -> Outcome:
    return _checks({"observers.check_bprop": want.value})


@effect("check_bprop_values")
def check_bprop_values(want: Want) -> Outcome:
    if want.device == "ascend":
        return refused(ROUNDED_OFF) if want.value else NOTHING_ASKED
    return _checks({"observers.check_bprop_values": want.value})


def _checks(assignments: dict[str, bool]) -> Outcome:
    """torch.compile takes a Function into its graph, where nothing is left that returns gradients of its own when it runs."""
    if not any(assignments.values()):
        return honoured(assignments)
    return approximated(
        assignments,
        "Functions in compiled code (torch.compile, compiled autograd) are checked where torch traces them, not when the code runs",
    )

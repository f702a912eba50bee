"""What shows the inside of a run: dumps, overflow, errors, the recorder, the watchdog, printed values, profiles."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from msctx.options import Setting, option_of
from msctx.options.grammars import DumpLayer, DumpStep, layers_in
from msctx.options.kinds import Bool, Choice, Int, Path, Text, TextFlag
from msctx.options.option import SESSION, Option, ascend_option, extension, session_option
from msctx.options.rules import TRUE, Excludes, Forbids, Needs, Overrides, Rule, When, is_set
from msctx.options.switch_values import Dump, ErrorDump, Overflow, Recorder
from msctx.themes.base import STAYS, On, Outcome, approximated, as_it_is, honoured, joined, refused
from msctx.themes.shared_by_themes import LEFT_TO_NPU, apart, with_graphs

DUMPS = When("session.enable_dump", TRUE)


def _by_file(mode: int) -> When:
    def requests(content: Mapping[str, Any]) -> bool:
        given, more = content.get("common_dump_settings", {}), content.get("e2e_dump_settings", {})
        return bool(given.get("op_debug_mode", 0) == mode and more.get("enable", True))

    return When("dump_config", test=requests, words=f"with op_debug_mode {mode}")


# fmt: off
OPTIONS = (
    Option("op_timeout", Int(0, 2**32 - 1), default=900, example=60, also=("device_context.ascend.op_debug.execute_timeout",),
        help="Seconds that a single operator may run before a watchdog prints the stacks and ends the task; 0 leaves the "
             "limits of torch and the driver as they are."),
    Option("enable_dump", Bool, example=True, replaced_by="session.enable_dump with dump_path",
        help="Formerly switched the dump of operator data on. MindSpore drops the value, and so does msctx, with a warning."),
    Option("save_dump_path", Path, example="dumps", replaced_by="dump_path",
        help="Formerly the directory for dumped operator data. MindSpore drops the value, and so does msctx, with a warning."),
    Option("print_file_path", Path, example="prints.bin", is_output=True,
        help="The file to which msctx.Print writes tensors and text instead of the screen, in MindSpore's format; msctx.parse_print "
             "reads it. It must not be a directory; if the file exists already, a new one with the time in its name is written."),
    Option("env_config_path", Path, example="env_config.json", content="ENV_CONFIG",
        help="A JSON file that configures the recorder of what ran (its section rdr: enable, mode, path) and the reuse of "
             "memory between tensors (its section sys: mem_reuse)."),
    Option("env_config_path.rdr.enable", Bool, default=False, example=True,
        help="Records the last operators (shapes, module, algorithm, time) and writes them to env_config_path.rdr.path if the "
             "program fails."),
    Option("env_config_path.rdr.mode", Choice({
            1: "only if the program fails", 2: "if it fails, and when it ends normally",
        }), default=1, example=2,
        help="When the recorder of env_config_path.rdr.enable writes its files."),
    Option("env_config_path.rdr.path", Path, default="./", example="/tmp/recorder",
        help="The directory for the files of env_config_path.rdr.enable; each rank of a distributed run gets its own folder in it"
             ". MindSpore accepts absolute paths only."),
    Option("check_bprop", Bool, default=False, example=True,
        help="Checks each hand-written backward function (torch.autograd.Function, register_autograd): there must be a gradient "
             "for every input, of the input's shape and dtype, else an error names the function. Calls made inside the scope are "
             "checked, wherever their backward runs."),
    ascend_option("exception_dump", Choice({
            "0": "nothing is saved", "1": "inputs and outputs of any operator that fails",
            "2": "only the inputs, and only for operators of the compute cores",
        }, {0: "0", 1: "1", 2: "2"}), default="2", example="1",
        help="What is saved when an operator fails. Gone from MindSpore since 2.6; a session's word for it is "
             "enable_exception_dump."),
    session_option("enable_exception_dump", Choice({
            0: "nothing is saved", 1: "its inputs and arguments, and the names of those that it writes to",
            2: "its inputs and arguments, in CANN's folder for its lite dump",
        }), default=2, example=1, ge="ge.exec.enable_exception_dump",
        help="What to save of an operator that fails."),
    Option("session.enable_dump", Bool, default=False, example=True, ge="ge.exec.enableDump", source=SESSION,
        help="Writes the data of the operators to dump_path while the program runs; dump_mode, dump_step, dump_data and "
             "dump_layer select what. Needs dump_path and excludes enable_dump_debug. The flat enable_dump is another, "
             "inert option."),
    session_option("dump_mode", Choice({
            "input": "what goes into an operator", "output": "what comes out of it", "all": "both, in separate files",
        }), default="output", example="all", ge="ge.exec.dumpMode",
        help="Which side of an operator session.enable_dump writes."),
    session_option("enable_dump_debug", Bool, default=False, example=True, ge="ge.exec.enableDumpDebug",
        help="Looks for overflow while training: operators that turn finite inputs into inf or NaN have "
             "their data written to dump_path. Excludes session.enable_dump."),
    session_option("dump_debug_mode", Choice({
            "aicore_overflow": "in operators that compute",
            "atomic_overflow": "in operators that accumulate into memory, such as scatter_add",
            "all": "in both sorts of operators",
        }), default="all", example="atomic_overflow", ge="ge.exec.dumpDebugMode",
        help="Where enable_dump_debug looks for overflow. Newer NPUs (Atlas A2) take no other value than all."),
    session_option("dump_path", Path, example="dumps", ge="ge.exec.dumpPath",
        help="The directory for dumped data; msctx creates it if it does not exist."),
    session_option("dump_step", DumpStep, example="0|3-5|10", ge="ge.exec.dumpStep",
        help="The training steps whose data are dumped, single ones and ranges; unset: every step. A step ends with "
             "optimizer.step() or msctx.step()."),
    session_option("dump_data", Choice({
            "tensor": "the tensors themselves", "stats": "a table of smallest, largest, mean, norm, NaN and inf counts",
        }), default="tensor", example="stats", ge="ge.exec.dumpData",
        help="What a dump holds."),
    session_option("dump_layer", DumpLayer, example="net/conv1 net/fc",
        ge="ge.exec.dumpLayer",
        help="The modules or operators whose data are dumped, by name, a model itself by its class; unset: all of them."),
    session_option("profiling_mode", Bool, default=False, example=True, ge="ge.exec.profilingMode",
        help="Records with torch.profiler, and writes traces and a table of operators; profiling_options sets what "
             "is recorded and where it goes. A step ends with optimizer.step() or msctx.step()."),
    session_option("profiling_options", Text, ge="ge.exec.profilingOptions", content="PROFILING",
        default='{"output":"./","training_trace":"on","task_time":"on","hccl":"on","aicpu":"on",'
                '"aic_metrics":"PipeUtilization","msproftx":"off"}',
        example='{"output":"profiles","training_trace":"on","task_trace":"on"}',
        help="What profiling_mode records, as a JSON object in text. output: the directory. training_trace: steps. "
             "task_trace (or task_time): a table of operators, without shapes for l0. aicpu: Python's stacks. hccl, msproftx: "
             "communication and the program's own ranges, which the trace has in any case. fp_point, bp_point: no counterpart. "
             "aic_metrics: counters of an NPU. storage_limit caps the files. A key that is left out is off; a text "
             "with neither trace has both on."),
    session_option("op_execute_timeout", Int(1, 2**32 - 1), example=90, ge="ge.exec.opExecuteTimeout",
        help="Seconds that a single operator may run: the session's word for op_timeout. Unset, the device's own limit "
             "holds."),
    extension("check_bprop_values", Bool, example=True,
        help="With check_bprop=True: the gradients of each hand-written backward function are also compared with differences of its "
             "forward by torch.autograd.gradcheck, in float64 and along a random direction, when it is called; a difference is an "
             "error. The functions must be smooth; those that cannot compute in float64 are left out with a warning."),
    extension("dump_format", Choice({
            "mindspore": "MindSpore's Dump: rank_0/Net/0/STEP/TYPE.NAME….npy and statistic.csv",
            "msprobe": "msProbe's: stepN/rankR/dump.json, construct.json, stack.json and dump_tensor_data/*.pt",
        }), default="mindspore", example="msprobe",
        help="The layout of the files of session.enable_dump and dump_config, for the tools of MindSpore or msProbe."),
    extension("dump_config", Path, example="dump.json", content="DUMP_CONFIG",
        help="MindSpore's JSON file for dumps (common_dump_settings, e2e_dump_settings), instead of session.enable_dump and "
             "its options: it dumps operators as tensors or statistics, looks for overflow, or saves the inputs of an operator "
             "that raises."),
    extension("replica_check", Int(0, 2**31 - 1), example=50,
        help="Compares the bits of the parameters of data-parallel models given to ctx.watch(model) between the ranks, every so many "
             "steps. The ranks gather digests, a collective. A warning names the first parameter that differs, and the ranks. 0 "
             "compares nothing."),
    session_option("quant_dumpable", TextFlag, default="0", example="1", ge="ge.quant_dumpable",
        help='"1" keeps the input of each quantisation as a separate tensor, so that dumps contain it, instead of letting '
             "fusion remove it."),
)

RULES: tuple[Rule, ...] = (
    *(Overrides(When(name, TRUE), When("dump_config"), always=True) for name in ("session.enable_dump", "enable_dump_debug")),
    *(Overrides(When("dump_config"), When(name, (False,))) for name in ("session.enable_dump", "enable_dump_debug")),
    Overrides(When("enable_exception_dump", (0, 1, 2)), When("exception_dump", ("0", "1", "2"))),
    *(Overrides(When(name, test=is_set), _by_file(4)) for name in ("enable_exception_dump", "exception_dump")),
    Excludes(When("session.enable_dump"), When("enable_dump_debug")),
    *(Needs(When(name), (When("dump_path"),), "error") for name in ("session.enable_dump", "enable_dump_debug")),
    *(Needs(When(name), (DUMPS,), "inert") for name in ("dump_mode", "dump_step", "dump_data", "dump_layer")),
    *(Needs(When(name), (DUMPS, _by_file(0)), "inert") for name in ("dump_format", "quant_dumpable")),
    Needs(When("dump_debug_mode"), (When("enable_dump_debug", TRUE),), "inert"),
    Needs(When("dump_path"), (DUMPS, When("enable_dump_debug", TRUE)), "inert"),
    Needs(When("profiling_options"), (When("profiling_mode", TRUE),), "inert"),
    Needs(When("env_config_path.rdr.mode"), (When("env_config_path.rdr.enable", TRUE),), "inert"),
    Needs(When("env_config_path.rdr.path"), (When("env_config_path.rdr.enable", TRUE),), "inert"),
    Needs(When("check_bprop_values"), (When("check_bprop", TRUE),), "inert"),
    Forbids(When("profiling_options"), When("profiling_mode", (False,)), "off", "profiling_mode is off"),
)
# fmt: on

OBSERVERS = (
    *("session.enable_dump", "dump_config", "enable_dump_debug", "enable_exception_dump", "exception_dump"),
    *("env_config_path.rdr.enable", "op_timeout", "op_execute_timeout", "deterministic_except"),
)
"""The options that have the native core watch operators."""
BY_CANN = f"TORCH_ACL_INIT_CONFIG_PATH {STAYS}"
UNSEEN = "fused operators are not seen separately"
NO_WORKSPACE = "without workspaces"
OF_GRAPHS = "CANN dumps only graphs, listed in ge_dump_data_json/"
COPIED = "not inside fused kernels or CUDA graphs"
SIDES = ("all", "input", "output")
DATA = {"tensor": "tensor", "statistic": "stats", "full": "full"}
LEFT_OUT = {
    "sample_mode": "sample_mode is ignored: tensors are dumped whole",
    "stat_calc_mode": "stat_calc_mode is ignored: statistics are computed on the host",
    "file_format": "file_format is ignored: tensors are .npy files, or .pt in msProbe's layout",
}
"""Keys without effect here."""
OF_MINDSPORE = {
    "net_name": "msProbe's layout has no place for net_name",
    "save_kernel_args": "msProbe's layout has no place for save_kernel_args",
    "statistic_category": "msProbe's layout always has Max, Min, Mean and Norm; of statistic_category it takes only md5, as a CRC-32",
}
"""Keys that have no effect, or another one, in msProbe's layout."""
OF_DUMPS = {
    "iteration": "all",
    "initial_iteration": 0,
    "dump_mode": 0,
    "input_output": 0,
    "saved_data": "tensor",
    "support_device": [],
    "file_format": "npy",
}
"""Keys, and what they are when left out, that select what is dumped, and no more."""
STATISTICS = ("max", "min", "l2norm")
"""MindSpore's, where its file names none."""
RECORDED = "records 100 steps (20 with aicpu) of this thread, written at exit"
ON_HOST = "only the host"
NO_POINTS = "without fp_point and bp_point"
OPERATORS = "operators are traced, too; no table is written"
NO_COUNTERS = "without aic_metrics, which chooses counters of an NPU's cores"


def translate(on: On, setting: Setting) -> Outcome | None:
    """The outcome of one of these options."""
    name, value, is_npu = setting.option.name, setting.value, on.device == "ascend"
    match name:
        case "op_timeout" | "op_execute_timeout":
            return _op_timeout(on)
        case "print_file_path":
            return honoured({"observers.print_file": value})
        case "env_config_path":
            return honoured(cause="its keys are separate options")
        case "env_config_path.rdr.enable" | "env_config_path.rdr.mode" | "env_config_path.rdr.path":
            return _recording(on, setting)
        case "check_bprop":
            return _checks({"observers.check_bprop": value})
        case "check_bprop_values" if not is_npu:
            return _checks({"observers.check_bprop_values": value})
        case "check_bprop_values":
            rounds = "torch_npu casts to float64 give float32, in which small differences are rounded off"
            return refused(rounds) if value else as_it_is()
        case "exception_dump" | "enable_exception_dump":
            return _exception_dump(on, int(value))
        case "enable_dump_debug" | "dump_debug_mode":
            found = overflow(on)
            return _seen(on, {"observers.overflow": found}) if found else honoured({"observers.overflow": None})
        case "dump_path":
            both = {"observers.dump": dump(on), "observers.overflow": overflow(on)}
            return _dumped(on, both) if any(both.values()) else as_it_is()
        case "dump_format" if not dump(on) and (of_file := on.settings.get("dump_config")):
            return _dump_config(on, of_file)
        case "session.enable_dump" | "dump_step" | "dump_mode" | "dump_data" | "dump_layer" | "dump_format":
            return _dumped(on, {"observers.dump": dump(on)}) if dump(on) else honoured({"observers.dump": None})
        case "dump_config":
            return _dump_config(on, setting)
        case "quant_dumpable":
            marks = {"torch.inductor.marks_quantized_inputs": value == "1"} | apart(on)
            return approximated(marks, LEFT_TO_NPU) if is_npu and value == "1" else honoured(marks)
        case "profiling_mode" if not value:
            return honoured({"torch.profiler": None})
        case "profiling_mode":
            profiler = {"torch.profiler": _recorder(_requested(on), on.get("reserve_class_name_in_scope"))}
            return approximated(profiler, f"{RECORDED}; {ON_HOST}") if is_npu else honoured(profiler, RECORDED)
        case "profiling_options":
            return _profiling_options(setting.content or {})
        case "replica_check":
            return honoured({"observers.replicas": value or None})
    return None


def dump(on: On) -> Dump | None:
    """The dump that all its options together request."""
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
    return on.by_core(approximated(assignments, COPIED if reads and on.device != "cpu" else UNSEEN))


def _dump_config(on: On, setting: Setting) -> Outcome:
    """op_debug_mode: 0 dumps, 3 looks for overflow, 4 keeps what goes into an operator that raises."""
    content = setting.content or {}
    given, more = content.get("common_dump_settings", {}), content.get("e2e_dump_settings", {})
    if not more.get("enable", True):
        return as_it_is()
    mode, path = given.get("op_debug_mode", 0), given.get("path", "")
    if mode in (3, 4):
        overflows = Overflow(path, most=given.get("overflow_number", 0), option="dump_config")
        errors = ErrorDump(1, path, "dump_config")
        outcome = _seen(on, {"observers.overflow": overflows} if mode == 3 else {"observers.errors": errors})
        left = [key for key, default in OF_DUMPS.items() if (given.get(key) or default) != default]
        unused = f"op_debug_mode {mode} watches all operators in all steps; ignored: {', '.join(left)}"
        return replace(outcome, reason=f"{outcome.reason}; {unused}", idle=True) if left and outcome.assignments else outcome
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
    left = [why for key, why in LEFT_OUT.items() if (given | more).get(key) not in (None, 0, "host", "npy")]
    if given.get("kernels") and given.get("dump_mode", 0) != 1:
        left.append("kernels applies only with dump_mode 1")
    if given.get("statistic_category") and found.data == "tensor" and found.layout == "mindspore":
        left.append("statistic_category applies only with saved_data statistic or full")
    if found.layout == "msprobe":
        left += [why for key, why in OF_MINDSPORE.items() if (given | more).get(key)]
    return replace(outcome, reason=joined(outcome.reason, *left), idle=bool(left))


def _exception_dump(on: On, level: int) -> Outcome:
    """Both are one notion."""
    by_cann = {"torch.npu.exception_dump": str(level)} if on.device == "ascend" else {}
    if not level:
        return honoured({"observers.errors": None} | by_cann, BY_CANN if by_cann else "")
    outcome = _seen(on, {"observers.errors": ErrorDump(level)} | by_cann)
    more = [NO_WORKSPACE, *([BY_CANN] if by_cann else [])] if outcome.assignments else []
    return replace(outcome, reason=joined(outcome.reason, *more))


def _recording(on: On, setting: Setting) -> Outcome:
    if not on.get("env_config_path.rdr.enable"):
        return honoured({"observers.recorder": None})
    mode, path = on.get("env_config_path.rdr.mode", 1), on.get("env_config_path.rdr.path", "./")
    if not os.path.isabs(path) and os.path.normpath(path) != ".":
        if setting.option.name == "env_config_path.rdr.path":
            return refused("MindSpore accepts absolute paths only; the files go to ./", "set an absolute path")
        path = "./"
    return _seen(on, {"observers.recorder": Recorder(path=path, mode=mode)}, reads=False)


def _op_timeout(on: On) -> Outcome:
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
    assignments = {"observers.watchdog": min(limits)} | by_device
    watched = {"cuda": "the host's time is watched", "ascend": "the host's time is watched; CANN limits the device's"}
    return on.by_core(approximated(assignments, joined(UNSEEN, watched.get(on.device, ""))))


def _checks(assignments: dict[str, bool]) -> Outcome:
    """torch.compile takes a Function into its graph, where nothing is left that returns gradients of its own when it runs."""
    traced = "Functions in compiled code are checked when torch traces them, not when they run"
    return approximated(assignments, traced) if any(assignments.values()) else honoured(assignments)


def _profiling_options(requested: Mapping[str, str]) -> Outcome:
    part = "part of profiling_mode=True"
    left = [NO_COUNTERS] * ("aic_metrics" in requested)
    if requested.get("fp_point") or requested.get("bp_point"):
        left.append(NO_POINTS)
    if not _recorder(requested)["operators"]:
        left.append(OPERATORS)
    return approximated({}, joined(part, *left)) if left else honoured(cause=part)


def _requested(on: On) -> Mapping[str, str]:
    """The keys of profiling_options; those of CANN's own text where it is not set."""
    if (setting := on.settings.get("profiling_options")) is not None:
        return setting.content or {}
    option = option_of("profiling_options")
    assert option.format is not None
    found: dict[str, str] = option.format.parse(option.default, "default").data
    return found


def _recorder(requested: Mapping[str, str], modules: bool | None = None) -> dict[str, Any]:
    """A key that is left out is off; but a text that names neither trace means both, or it would record nothing.

    *modules*: whether the ranges of modules have classes; None: modules have no ranges.
    """
    tasks = requested.get("task_trace", requested.get("task_time"))
    steps = requested.get("training_trace")
    if tasks is None and steps is None:
        tasks = steps = "on"
    limit = requested.get("storage_limit")
    return {
        "output": requested.get("output", "./"),
        "storage_limit": limit and int(limit.removesuffix("MB")),
        "steps": steps == "on",
        "operators": tasks in ("on", "l0", "l1"),
        "shapes": tasks in ("on", "l1"),
        "stacks": requested.get("aicpu") == "on",
        "modules": modules,
    }

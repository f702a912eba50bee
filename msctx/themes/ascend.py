"""CANN's graph engine: ge_options, and the options that are keys of its own. Elsewhere they do what torch has a meaning for."""

from __future__ import annotations

from typing import Any

from msctx.options import Setting, known_to_ge
from msctx.options.grammars import StreamParallel
from msctx.options.kinds import AnyText, Choice, Flag, Int, Text, TextFlag
from msctx.options.option import ASCEND, Option, ascend_option, session_option
from msctx.options.registry import named
from msctx.options.rules import OF_INFERENCE, Forbids, Rule, When
from msctx.themes import common
from msctx.themes.base import On, Outcome, approximated, as_it_is, honoured, inert, reason, refused, translates
from msctx.themes.graph import ALONE, LEVEL, compilation

# fmt: off
OPTIONS = (
    Option("jit_compile", Choice({
            "auto": "compiled for static shapes, ready-made kernels for changing ones",
            "true": "kernels are compiled for the shapes at hand",
            "false": "ready-made kernels of the libraries, compiled only where none exists",
        }, {True: "true", False: "false"}), default="auto", example=False, groups=("ascend_config", "session"),
        also=("device_context.ascend.op_tuning.op_compile",), ge="ge.jit_compile", source=ASCEND,
        help="Whether kernels are compiled for the shapes at hand or taken ready-made from the libraries."),
    Option("atomic_clean_policy", Flag, default=1, example=0, defaults={"session": 0}, groups=("ascend_config", "session"),
        ge="ge.exec.atomicCleanPolicy", source=ASCEND,
        help="How the memory that accumulating operators add into is zeroed: 0 all of it together, 1 just before each "
             "operator, which needs less memory and some more time. Unset, MindSpore means 1, while a CANN session means 0."),
    ascend_option("ge_options.global", dict[Text, AnyText], example={"ge.opSelectImplmode": "high_precision"},
        help="Options of CANN's graph engine for the whole process, in its own words: ge.* keys and values as text. A key "
             "that is an option here acts as that option does and wins over it; the others are handed on to CANN. Both "
             "ge_options and the group ascend_config apply to Ascend alone."),
    ascend_option("ge_options.session", dict[Text, AnyText], example={"ge.exec.atomicCleanPolicy": "1"},
        help="Options of CANN's graph engine for one session, in its own words: ge.* keys and values as text, taken as "
             "those of ge_options.global are; here too ge_options and the group ascend_config apply to Ascend alone."),
    ascend_option("host_scheduling_max_threshold", Int(0), default=0, example=20, ge="ge.exec.hostSchedulingMaxThreshold",
        help="Compiled graphs of static shape with fewer operators than this are launched operator by operator from the "
             "host, as graphs of changing shape are, rather than as one recorded graph; 0 means none are."),
    session_option("ac_parallel_enable", TextFlag, default="0", example="1", ge="ac_parallel_enable",
        help='"1" lets operators that run on the host go on beside those of the device in graphs of changing shape, on a '
             "thread (and stream) of their own."),
    session_option("buffer_optimize", Choice({
            "l2_optimize": "buffers are reused and work is ordered for locality",
            "off_optimize": "buffers and order are left as they are",
        }), default="l2_optimize", example="off_optimize", ge="ge.bufferOptimize",
        help="Whether compiled graphs reuse buffers and order their work so that data is found in the caches."),
    session_option("stream_max_parallel_num", StreamParallel, example="DNN_VM_AICPU:2,AIcoreEngine:4",
        ge="ge.streamMaxParallelNum",
        help="How many operators each engine may run at the same time, one unless named: DNN_VM_AICPU means threads of the "
             "host, AIcoreEngine streams of the device."),
)
# fmt: on

RULES: tuple[Rule, ...] = (Forbids(When("buffer_optimize", ("l2_optimize", "off_optimize")), *OF_INFERENCE),)

SENT = {*common.WITH_GRAPHS, *common.WITH_ENGINE, *common.DUMPS, "deterministic", "aoe_mode", "work_path", "aoe_config_file"}
"""The options whose keys the engine gets, from here or, of the last four, from torchair."""


JIT_COMPILE = {"true": True, "false": False}
"""Values of jit_compile → of torch_npu's switch; it has none for auto."""
BY_CHIP = "torch_npu's default for this chip applies to eager operators; it has no `auto`"
CLEARS_BY_ITSELF = "PyTorch's operators each zero their own memory, just before they add into it"
ONE_QUEUE = "PyTorch runs the operators of a graph one after the other, in its order"
BESIDE = "the host's operators run beside those of the device, on the thread that calls"
FROM_THE_HOST = "compiled code launches its kernels one by one from the host, whatever its size"


def _in_graphs(on: On, more: dict[str, Any] | None = None, differs: str = "") -> Outcome:
    found = common.with_graphs(on) | (more or {})
    return approximated(found, f"{differs}; {common.GRAPHS}") if differs else honoured(found, common.GRAPHS)


@translates("jit_compile")
def _jit_compile(on: On, setting: Setting) -> Outcome:
    if on.device == "ascend":
        more = {"torch.npu.jit_compile": JIT_COMPILE.get(setting.value), "graph.compilation": compilation(on)}
        return _in_graphs(on, more, BY_CHIP if setting.value == "auto" else "")

    if setting.value == "auto":
        return approximated({}, "torch.compile compiles for the first shapes, and then one kernel for those that change")
    for name in (LEVEL, "enable_graph_kernel") if setting.value == "false" else ("compile_dynamic_mode", "dynamic_input"):
        if on.get(name) is not None:
            return inert(f"overridden by {name}={on.get(name)!r}")
    return honoured({"graph.compilation": compilation(on)}, "" if on.get("mode") == 0 else ALONE)


ZEROED_TOGETHER = refused(f"{CLEARS_BY_ITSELF}; one block for all of them would be held while the whole graph runs")
OWN_CUDA_GRAPHS = f"{FROM_THE_HOST}; CUDA graphs that a program requests itself stay as they are"
OFF_AND_ON = {
    ("atomic_clean_policy", "cpu"): (ZEROED_TOGETHER, honoured(cause=CLEARS_BY_ITSELF)),
    ("atomic_clean_policy", "cuda"): (ZEROED_TOGETHER, honoured(cause=CLEARS_BY_ITSELF)),
    ("host_scheduling_max_threshold", "cpu"): (approximated({}, FROM_THE_HOST), honoured(cause=FROM_THE_HOST)),
    ("host_scheduling_max_threshold", "cuda"): (as_it_is(), approximated({}, OWN_CUDA_GRAPHS)),
    ("ac_parallel_enable", "cpu"): (as_it_is(), refused("the host is the device here: there is nothing beside it")),
    ("ac_parallel_enable", "cuda"): (refused(BESIDE), approximated({}, BESIDE)),
}
"""Option and device → what its value 0 gives, and what others do."""


@translates("atomic_clean_policy", "host_scheduling_max_threshold", "ac_parallel_enable")
def _off_or_on(on: On, setting: Setting) -> Outcome:
    if on.device == "ascend":
        return _in_graphs(on)
    off, other = OFF_AND_ON[setting.option.name, on.device]
    return other if int(setting.value) else off


@translates("buffer_optimize")
def _buffer_optimize(on: On, setting: Setting) -> Outcome:
    if on.device == "ascend":
        return _in_graphs(on)
    optimizes = setting.value == "l2_optimize"
    reuse = ("torch.inductor.allow_buffer_reuse", "torch.inductor.inplace_buffers", "torch.inductor.reorder_for_locality")
    found = dict.fromkeys(reuse, optimizes) | common.apart(on)
    if on.get("env_config_path.sys.mem_reuse") is False and optimizes:
        return inert("overridden by env_config_path.sys.mem_reuse=False, under which no tensor gets memory of another one")
    return honoured(found, "in code that torch.compile makes")


@translates("stream_max_parallel_num")
def _stream_max_parallel_num(on: On, setting: Setting) -> Outcome:
    if on.device == "ascend":
        return _in_graphs(on)
    numbers = {int(pair.rpartition(":")[2]) for pair in setting.value.split(",")}
    return honoured(cause=ONE_QUEUE) if numbers == {1} else refused(ONE_QUEUE, "use streams in the program")


@translates("ge_options.global", "ge_options.session")
def _raw_keys(on: On, setting: Setting) -> Outcome:
    if not setting.value:
        return as_it_is()
    if on.device != "ascend":
        return inert("ge_options goes to CANN's graph engine, which Ascend alone has")
    level = setting.option.name.removeprefix("ge_options.")
    if level == "global":
        assignments, how = {"torch.npu.engine_options": common.engine_options(on)}, common.ONCE
    else:
        assignments, how = common.with_graphs(on), "torchair has one session: they go with each graph"
    left = common.sendable(setting.value, level)
    lost = [key for key in setting.value if key not in left and not known_to_ge(key)]
    unsent = [key for key in setting.value if known_to_ge(key) and named(key).name not in SENT]
    pinned = [
        f"{key}={common.PINNED[key]}" for key in unsent if common.PINNED.get(key, setting.value[key]) != setting.value[key]
    ]
    overwrites = reason(
        f"torchair overwrites {', '.join(lost)} in the engine", "set them in ge_options.session, which goes with each graph"
    )
    if len(lost) == len(setting.value):
        return refused(overwrites)
    reasons = [f"{', '.join(left)}: {common.GRAPHS}; {how}"] if left else ["its keys are options of their own"]
    reasons += [f"{', '.join(unsent)}: msctx applies it; it is not passed to the engine"] if unsent else []
    reasons += [f"in graphs torchair's {', '.join(pinned)} holds"] if pinned else []
    reasons += [overwrites] if lost else []
    return (approximated if pinned or lost else honoured)(assignments if left else {}, "; ".join(reasons))

"""CANN's sessions: what ``run()`` does with the function that it is given, how batches reach it, and what is an error.

And CANN's graph engine: ge_options, and the options that are keys of its own. Elsewhere these do what torch has a meaning for.
"""

from __future__ import annotations

from typing import Any

from msctx.options import DEVICES, Setting
from msctx.options.grammars import AccelerateTrainMode, DeviceList, StreamParallel
from msctx.options.kinds import AnyText, Bool, Choice, DictOf, Flag, Int, Text, TextFlag
from msctx.options.option import ASCEND, Option, ascend_option, extension, session_option
from msctx.options.registry import GE
from msctx.options.rules import OF_INFERENCE, OF_TRAINING, Forbids, Needs, Rule, When, is_above_one, is_set
from msctx.themes import shared_by_themes as shared
from msctx.themes.base import On, Outcome, approximated, as_it_is, honoured, inert, reason, refused
from msctx.themes.graph import LEVEL, compilation
from msctx.themes.precision import POLICY, PRECISION_MODES, PRECISION_MODES_V2, policy
from msctx.themes.shared_by_themes import ALONE, GRAPHS, with_graphs

# fmt: off
OPTIONS = (
    session_option("graph_run_mode", Flag, default=1, example=0, ge="ge.graphRunMode",
        help="Whether run() of a session trains (1) or infers (0): with watched models in train or eval mode, and with gradients or "
             "in inference mode. What only makes sense in one, such as frozen_variable or gears of shapes, is refused in the other."),
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
        help="The processes of this machine, by local_rank_id, that share the batches of the process of local_rank_id=0; "
             "others load separately. Needs local_rank_id."),
    session_option("experimental_accelerate_train_mode", AccelerateTrainMode, example="fast1|step|0.9",
        help="Trains in low precision first and in full precision later, in run() of a session. Written as speed|trigger|ratio: fast "
             "lowers to float16, fast1 to bfloat16; step ends the phase once $STEP_NOW is that share of $TOTAL_STEP (0.2 to 0.9), "
             "loss once $LOSS_NOW is within that multiple of $TARGET_LOSS (1.01 to 1.5). The program sets the variables."),
    session_option("enable_data_pre_proc", Bool, default=False, example=True,
        help="Fetches batches ahead of the step on a separate thread and copies them to the device during the step. "
             "Deprecated in CANN; iterations_per_loop above 1 rests on it."),
    extension("strict", Bool, example=True,
        help="Turns every option that would be refused or is inert (but those of a device that is not here) "
             "into an error before anything changes, and a switch that other code changed inside the scope into an error at "
             "exit. Without it each is a single warning."),
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
    ascend_option("ge_options.global", DictOf(AnyText, Text), example={"ge.opSelectImplmode": "high_precision"},
        help="Options of CANN's graph engine for the whole process, in its own words: ge.* keys and values as text. A key "
             "that is an option here acts as that option does and wins over it; the others are handed on to CANN. Both "
             "ge_options and the group ascend_config apply only to Ascend."),
    ascend_option("ge_options.session", DictOf(AnyText, Text), example={"ge.exec.atomicCleanPolicy": "1"},
        help="Options of CANN's graph engine for one session, in its own words: ge.* keys and values as text, taken as "
             "those of ge_options.global are; here too ge_options and the group ascend_config apply only to Ascend."),
    ascend_option("host_scheduling_max_threshold", Int(0), default=0, example=20, ge="ge.exec.hostSchedulingMaxThreshold",
        help="Compiled graphs of static shape with fewer operators than this are launched operator by operator from the "
             "host, as graphs of changing shape are, rather than as one recorded graph; 0 means none are."),
    session_option("ac_parallel_enable", TextFlag, default="0", example="1", ge="ac_parallel_enable",
        help='"1" lets operators that run on the host run together with those of the device in graphs of changing shape, on a '
             "separate thread (and stream)."),
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
    Forbids(When("buffer_optimize", ("l2_optimize", "off_optimize")), *OF_INFERENCE),
)
# fmt: on

IN_RUN = "acts in run() of msctx.session"
LOW_PRECISION = "session.low_precision"
"""The switch of the policies for the first part of a training."""
SHARED = (
    "only for torch's DataLoader in the thread that entered the context",
    "iterate over the same loaders in the same order in all processes, and stop at the same batch",
)
OWN_LOADER = (
    "another thread than the program's data loader would draw other random numbers and change training",
    "prefetch with DataLoader(num_workers=…, prefetch_factor=…, pin_memory=True), and copy with "
    "tensor.to(device, non_blocking=True)",
)
OWN_COPIES = (
    "the program copies its inputs itself, each tensor where its code says so",
    "put small inputs into one tensor in the collate_fn, and copy that from pinned memory: DataLoader(pin_memory=True), "
    "tensor.to(device, non_blocking=True)",
)

# --- CANN's graph engine ------------------------------------------------------------------------------------------------

SENT = {*shared.WITH_GRAPHS, *shared.WITH_ENGINE, *shared.DUMPS, "deterministic", "aoe_mode", "work_path", "aoe_config_file"}
"""The options whose keys the engine gets, from here or, of the last four, from torchair."""
JIT_COMPILE = {"true": True, "false": False}
"""Values of jit_compile → of torch_npu's switch; it has none for auto."""
BY_CHIP = "in eager code the chip's default, since torch_npu has no `auto`"
CLEARS_BY_ITSELF = "PyTorch's operators zero their own memory"
ONE_QUEUE = "PyTorch runs the operators of a graph one after the other, in its order"
BESIDE = "the host's operators run together with those of the device, on the thread that calls"
FROM_THE_HOST = "compiled code launches its kernels one by one from the host, whatever its size"
REUSE = ("torch.inductor.allow_buffer_reuse", "torch.inductor.inplace_buffers", "torch.inductor.reorder_for_locality")
ZEROED_TOGETHER = refused(f"{CLEARS_BY_ITSELF}; one block would be held for the whole graph")
OWN_CUDA_GRAPHS = "kernels are launched one by one from the host; the program's CUDA graphs stay"
OFF_AND_ON = {
    ("atomic_clean_policy", "cpu"): (ZEROED_TOGETHER, honoured(cause=CLEARS_BY_ITSELF)),
    ("atomic_clean_policy", "cuda"): (ZEROED_TOGETHER, honoured(cause=CLEARS_BY_ITSELF)),
    ("host_scheduling_max_threshold", "cpu"): (approximated({}, FROM_THE_HOST), honoured(cause=FROM_THE_HOST)),
    ("host_scheduling_max_threshold", "cuda"): (as_it_is(), approximated({}, OWN_CUDA_GRAPHS)),
    ("ac_parallel_enable", "cpu"): (as_it_is(), refused("the host is the device, and there is no other")),
    ("ac_parallel_enable", "cuda"): (refused(BESIDE), approximated({}, BESIDE)),
}
"""Option and device → what its value 0 gives, and what others do."""


def translate(on: On, setting: Setting) -> Outcome | None:
    """The outcome of one of these options."""
    name, value = setting.option.name, setting.value
    match name:
        case "strict":
            return honoured()
        case "iterations_per_loop":
            return honoured({"session.iterations_per_loop": value}, IN_RUN)
        case "graph_run_mode" if value:
            return honoured({"session.graph_run_mode": "training"}, IN_RUN)
        case "graph_run_mode":
            return approximated({"session.graph_run_mode": "inference"}, f"{IN_RUN}; enable_small_channel stays as it is")
        case "graph_max_parallel_model_num":
            threads = {"session.graph_max_parallel_model_num": value}
            if on.device == "cpu" or value == 1:
                return honoured(threads, IN_RUN)
            return approximated(threads, f"{IN_RUN}; the threads share the device's stream, unless each takes a separate one")
        case "experimental_accelerate_train_mode":
            speed, until, ratio = value.split("|")
            acting = {device: there for device in DEVICES if setting.option.name in (there := on.at(device)).settings}
            policies = {device: policy(there, speed)[POLICY[device]] for device, there in acting.items()}
            return on.by_core(honoured({LOW_PRECISION: {"policies": policies, "until": until, "ratio": float(ratio)}}, IN_RUN))
        case "local_rank_id" | "local_device_list":
            ranks = sorted(map(int, on.get("local_device_list", "0").split(",")))
            return approximated({"torch.dataloader.shared": {"rank": on.get("local_rank_id", 0), "ranks": ranks}}, *SHARED)
        case "enable_data_pre_proc":
            return refused(*OWN_LOADER) if value else as_it_is()
        case "ge_options.global" | "ge_options.session":
            return _raw_keys(on, setting) if value else as_it_is()
        case "jit_compile":
            return _jit_compile(on, value)
        case _ if on.device == "ascend":  # the others are keys of its graph engine
            return _in_graphs(on)
        case "input_fusion_size":
            return refused(*OWN_COPIES) if value else honoured(cause="PyTorch copies each tensor by itself")
        case "buffer_optimize":
            if value == "l2_optimize" and on.get("env_config_path.sys.mem_reuse") is False:
                why = "env_config_path.sys.mem_reuse=False, under which no tensor gets memory of another one"
                return inert(f"overridden by {why}")
            return honoured(dict.fromkeys(REUSE, value == "l2_optimize") | shared.apart(on), "in compiled code")
        case "stream_max_parallel_num":
            is_one = {int(pair.rpartition(":")[2]) for pair in value.split(",")} == {1}
            return honoured(cause=ONE_QUEUE) if is_one else refused(ONE_QUEUE, "use streams in the program")
    off, other = OFF_AND_ON[name, on.device]
    return other if int(value) else off


def _in_graphs(on: On, more: dict[str, Any] | None = None, differs: str = "") -> Outcome:
    found = with_graphs(on) | (more or {})
    return approximated(found, f"{differs}; {GRAPHS}") if differs else honoured(found, GRAPHS)


def _jit_compile(on: On, value: str) -> Outcome:
    if on.device == "ascend":
        more = {"torch.npu.jit_compile": JIT_COMPILE.get(value), "graph.compilation": compilation(on)}
        return _in_graphs(on, more, BY_CHIP if value == "auto" else "")
    if value == "auto":
        return approximated({}, "torch.compile compiles for the first shapes, and then one kernel for those that change")
    for name in (LEVEL, "enable_graph_kernel") if value == "false" else ("compile_dynamic_mode", "dynamic_input"):
        if on.get(name) is not None:
            return inert(f"overridden by {name}={on.get(name)!r}")
    return honoured({"graph.compilation": compilation(on)}, "" if on.get("mode") == 0 else ALONE)


def _raw_keys(on: On, setting: Setting) -> Outcome:
    if on.device != "ascend":
        return inert("ge_options goes to CANN's graph engine, which only Ascend has")
    level = setting.option.name.removeprefix("ge_options.")
    if level == "global":
        assignments, how = {"torch.npu.engine_options": shared.engine_options(on)}, shared.ONCE
    else:
        assignments, how = with_graphs(on), "torchair has one session: they go with each graph"
    left = shared.sendable(setting.value, level)
    lost = [key for key in setting.value if key not in left and key not in GE]
    unsent = [key for key in setting.value if key in GE and GE[key].name not in SENT]
    pinned = [
        f"{key}={shared.PINNED[key]}" for key in unsent if shared.PINNED.get(key, setting.value[key]) != setting.value[key]
    ]
    fix = "set them in ge_options.session, which goes with each graph"
    overwrites = reason(f"torchair overwrites {', '.join(lost)} in the engine", fix)
    if len(lost) == len(setting.value):
        return refused(overwrites)
    reasons = [f"{', '.join(left)}: {GRAPHS}; {how}"] if left else ["its keys are separate options"]
    reasons += [f"{', '.join(unsent)}: msctx applies it instead"] if unsent else []
    reasons += [f"in graphs torchair's {', '.join(pinned)} holds"] if pinned else []
    reasons += [overwrites] if lost else []
    return (approximated if pinned or lost else honoured)(assignments if left else {}, "; ".join(reasons))

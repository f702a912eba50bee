"""Graph mode: which code is compiled, and how; what is fused: graph_kernel_flags, passes and constants; the files of its graphs."""

from __future__ import annotations

import re
from ast import literal_eval
from typing import Any

from msctx.options import Setting
from msctx.options.algorithm_policy import DIRECTIONS, RECORDED
from msctx.options.grammars import DynamicDims, InOutPair, InputShape, ScopePasses, ShapeRange, gears_of, ranges_of
from msctx.options.kinds import Bool, Choice, Flag, Path, TextKind
from msctx.options.option import Option, session_option
from msctx.options.rules import NOT_MEASURED, OF_INFERENCE, TRUE, Excludes, Forbids, Needs, Overrides, Rule, When, is_above_one
from msctx.options.switch_values import ALL, TWINS, WITHOUT_A_TWIN, Compilation, GraphFiles, Region, Shapes
from msctx.themes import graph_kernel_flags
from msctx.themes.base import On, Outcome, approximated, as_it_is, by_entry, honoured, inert, joined, once, refused
from msctx.themes.cache import cache
from msctx.themes.convolution_and_algorithm_policy import POLICY, conv_policy, only_records, raced, requested_of
from msctx.themes.graph_kernel_flags import DUMP, DUMPS, FLAGS, GROUP
from msctx.themes.shared_by_themes import ALONE, GRAPHS, ONCE, apart, engine_options, search

GEARS = (When("input_shape"), When("dynamic_dims"), When("dynamic_node_type", (0, 1)))

# fmt: off
OPTIONS = (
    Option("save_graphs", Choice({
            0: "no graph files", 1: "what Dynamo captured, and its forward and backward graphs",
            2: "these, inductor's graphs and its generated code", 3: "all of that, inductor's trace folder, and drawings",
        }, {False: 0, True: 2}), default=0, example=1,
        help="How many of the graphs seen while compiling are written to save_graphs_path; true means 2. Code that runs "
             "eagerly writes nothing."),
    Option("save_graphs_path", Path, default=".", example="graphs",
        help="The directory for the files of save_graphs; it is made when missing, and each rank of a distributed run gets its "
             "own folder in it."),
    Option("precompile_only", Bool, default=False, example=True,
        help="Compiles the model and does not run it: the call returns None, launches no kernel and changes no parameter. "
             "It fills a compile cache without training, and matters only for code that is compiled."),
    Option("reserve_class_name_in_scope", Bool, default=True, example=False,
        help="Whether the names of modules in dumps and profiles carry the class (Default/net-Net1/fc-Linear) "
             "or only the attribute (Default/net/fc). Where it is set, profiles of profiling_mode have a range for each call of a "
             "module."),
    Option("mode", Choice({
            0: "whole models are compiled with torch.compile (GRAPH_MODE)",
            1: "operators run one by one, eagerly (PYNATIVE_MODE)",
        }, {"GRAPH_MODE": 0, "PYNATIVE_MODE": 1}), default=1, example="GRAPH_MODE",
        help="Whether programs are compiled or run eagerly; PYNATIVE_MODE runs eagerly also where a function was wrapped "
             "for compilation before."),
    Option("enable_graph_kernel", Bool, default=False, example=True,
        help="Whether compiled graphs have their operators fused into generated kernels (inductor) or run one library "
             "kernel per node. graph_kernel_flags wins over it."),
    Option("grad_for_scalar", Bool, default=False, example=True,
        help="Whether the gradient functions of msctx also differentiate with respect to arguments that are plain Python "
             "numbers; otherwise these count as constants."),
    Option("support_binary", Bool, default=False, example=True,
        help="Lets functions without Python source (.pyc, .so) take part in compilation; sources that are needed are kept "
             "in a preparing run of MindSpore's; torch.compile reads bytecode, and needs none."),
    Option("jit_syntax_level", Choice({
            0: "what cannot be captured is an error; allows export (STRICT)",
            1: "between the other two, and acts as 2 (COMPATIBLE)", 2: "what cannot be captured runs eagerly (LAX)",
        }, {"STRICT": 0, "COMPATIBLE": 1, "LAX": 2}), default=2, example="STRICT",
        help="How strict compilation is about Python code that cannot be captured in a graph."),
    session_option("input_shape", InputShape, example="data:1,1,40,-1;label:1,-1", ge="ge.inputShape",
        help="The shape of each input, -1 marking the dimensions whose sizes dynamic_dims lists: for every gear a separate "
             "graph is compiled, and other shapes are errors. Needs dynamic_dims and dynamic_node_type."),
    session_option("dynamic_dims", DynamicDims, example="20,20;40,40;80,60", ge="ge.dynamicDims",
        help="The gears of input_shape: each has one size for every -1, in order. At least two of them, and it wins over "
             "dynamic_inputs_shape_range."),
    session_option("dynamic_node_type", Flag, example=1, ge="ge.dynamicNodeType",
        help="Which inputs input_shape applies to: 0 the batches of a data loader, 1 the arguments of the call."),
    session_option("compile_dynamic_mode", Bool, default=False, example=True, ge="ge.compile_dynamic_mode",
        help="Compiles for any size in every dimension of every input (torch.compile with dynamic=True) instead of for the "
             "shapes seen. Excludes input_shape."),
    session_option("mix_compile_mode", Bool, default=False, example=True,
        help="Whether parts of a model that cannot be compiled may run eagerly between the compiled ones; otherwise such a "
             "part is an error. Needs iterations_per_loop=1."),
    session_option("in_out_pair_flag", Bool, default=True, example=False,
        help="Which side of the region in_out_pair is compiled: true what lies inside it, false what lies outside."),
    session_option("in_out_pair", InOutPair, example="[['conv1'], ['relu3']]",
        help="One region of a model, written as the names of its first and of its last operators in two lists; "
             "in_out_pair_flag sets which side of it is compiled. Needs mix_compile_mode=true."),
    session_option("dynamic_input", Bool, default=False, example=True, ge="ge.exec.dynamicInput",
        help="Declares that input shapes change, so that graphs are compiled for the ranges of dynamic_inputs_shape_range. "
             "Deprecated in CANN; compile_dynamic_mode is the newer way."),
    session_option("dynamic_graph_execute_mode", Choice({
            "dynamic_execute": "one graph for whole ranges of shapes", "lazy_recompile": "one graph for each shape that comes",
        }), default="dynamic_execute", example="lazy_recompile", ge="ge.exec.dynamicGraphExecuteMode",
        help="With dynamic_input: how many graphs are compiled. Deprecated in CANN."),
    session_option("dynamic_inputs_shape_range", ShapeRange, example="getnext:[128,3~5,2~128,-1],[64,-1];data:[128,-1]",
        ge="ge.exec.dataInputsShapeRange",
        help="With dynamic_input: the range of every dimension, as a number, a~b or -1 for any, getnext standing for "
             "batches of a data loader and data for arguments. Deprecated in CANN; dynamic_dims wins over it."),
    Option("graph_kernel_flags",
        TextKind("flags such as --opt_level=2", " ", empty=True), default="",
        example="--opt_level=2 --dump_as_text", content="GRAPH_KERNEL_FLAGS",
        help="Fine control of operator fusion as flags in one text, separated by blanks: --opt_level=0..3 sets how far "
             "fusion goes, --dump_as_text writes what the passes did, --path=FILE reads flags from a JSON file. A bare flag means "
             "true; a list of flags is taken too."),
    *FLAGS,
    session_option("fusion_switch_file", Path, example="fusion_switch.json", ge="ge.fusionSwitchFile", content="FUSION_SWITCH",
        help="A JSON file that switches fusion passes on or off by name, graph passes and kernel fusion apart; ALL stands "
             "for a whole group, and single names win over it."),
    session_option("enable_scope_fusion_passes", ScopePasses,
        example="ScopeLayerNormPass,ScopeClipBoxesPass", ge="ge.exec.enableScopeFusionPasses",
        help="Switches fusion passes on that are off unless named: each replaces one pattern, such as a layer norm written "
             "out, by one operator."),
    session_option("frozen_variable", Bool, default=False, example=True,
        help="Compiles the weights into the graph as constants, so that the compiler may fold and repack them; for inference, "
             "in code that computes no gradients (torch.no_grad)."),
    Option("disable_format_transform", Bool, default=False, example=True, devices=("cpu", "cuda"),
        help="true keeps convolutions in the layout NCHW; false allows compiled models to be moved to channels_last where "
             "that is faster (inductor's layout_optimization). MindSpore knows it only for CUDA."),
)

RULES: tuple[Rule, ...] = (
    Overrides(When("graph_kernel_flags.opt_level", (0,)), When("enable_graph_kernel", TRUE)),
    Overrides(When("graph_kernel_flags.opt_level", (1, 2, 3)), When("enable_graph_kernel", (False,))),
    Overrides(When("dynamic_dims"), When("dynamic_inputs_shape_range")),
    *(Overrides(gears, When("dynamic_input", TRUE)) for gears in GEARS),  # gears say more than ranges, and yield together
    Overrides(When("dynamic_input", TRUE), When("compile_dynamic_mode", (True, False))),
    *(Excludes(When("compile_dynamic_mode"), gears) for gears in GEARS),
    Excludes(When("input_shape"), When("dynamic_dims"),
        test=lambda shape, gears: len(re.findall(r"[:,]-1\b", shape)) != len(gears.partition(";")[0].split(",")),
        why="a gear of dynamic_dims has one size for each -1 of input_shape"),
    Excludes(When("mix_compile_mode"), When("iterations_per_loop", test=is_above_one, words="above 1")),
    Needs(When("input_shape"), (When("dynamic_dims"),)),
    Needs(When("input_shape"), (When("dynamic_node_type", (0, 1)),)),
    Needs(When("dynamic_dims"), (When("input_shape"),)),
    Needs(When("dynamic_node_type", (0, 1)), (When("input_shape"),)),
    Needs(When("in_out_pair"), (When("mix_compile_mode", TRUE),)),
    Needs(When("in_out_pair_flag", (True, False)), (When("in_out_pair"),), "inert"),
    Needs(When("save_graphs_path"), (When("save_graphs", (1, 2, 3)),), "inert"),
    Needs(When("dynamic_graph_execute_mode"), (When("dynamic_input", TRUE),), "inert"),
    Needs(When("dynamic_inputs_shape_range"), (When("dynamic_input", TRUE),), "inert"),
    *(Forbids(gears, *OF_INFERENCE) for gears in GEARS),
    Forbids(When("frozen_variable"), When("graph_run_mode", (1,)), "refused", "weights that are trained cannot be constants"),
    Forbids(When("graph_kernel_flags.online_tuning", test=bool, words="above 0"), When("deterministic", ("ON",)), "inert",
        NOT_MEASURED),
)
# fmt: on

STRICT, LAX = 0, 2
COMPILES, IN_PYTHON = "torch.compile compiles each model", "loop and optimizer stay Python"
BY_TORCHAIR = "torchair compiles graphs when they first run"
CAPTURED = f"only captured here; {BY_TORCHAIR}"
UNNAMED = "batches have no names in PyTorch: input_shape applies to tensors in their order"
GRADIENTS = "in the functions that msctx.grad and msctx.value_and_grad return"
OF_MODELS = "for models with parameters: modules without any, such as losses, accept every shape"
LEVEL = "graph_kernel_flags.opt_level"
TUNED, FROZEN, AS_PRODUCT = f"{GROUP}.online_tuning", "frozen_variable", "ConvToFullyConnectionFusionPass"
ALREADY_MIXED = "PyTorch already runs eagerly what torch.compile cannot compile, unless a call has fullgraph=True"
TEXT = "files have PyTorch's text of graphs, not MindSpore's IR"
NO_STAGES = f"{TEXT}; torchair's graphs as captured"
CACHED = f"{TEXT}; cached code writes graphs recorded earlier"
BY_CANN = "CANN fuses by its own rules"
EXTRAS = (DUMP, "enable_debug_mode", "online_tuning")
"""Flags that add something to fusion: off, they ask an engine that knows no flags for nothing."""
AS_TEXT = f"torchair writes graphs into {DUMPS}, not passes and kernels"
FROZEN_BY_CANN = "CANN keeps weights as constants: do not move their memory"
AGGRESSIVE = "kernels without shared data are also combined, perhaps slower"
KEEP_CONVOLUTIONS = "the requested algorithm wins: with {} inductor would compute convolutions and matmuls without it"


def translate(on: On, setting: Setting) -> Outcome | None:
    """The outcome of one of these options."""
    name, value, is_npu = setting.option.name, setting.value, on.device == "ascend"
    match name:
        case "mode":
            found = {"graph.compilation": compilation(on), "graph.modules": value == 0, "torch.dynamo.force_eager": value != 0}
            if value == 0:
                found["torch.dynamo.skip_nnmodule_hook_guards"] = False
            return honoured(found, f"{BY_TORCHAIR if is_npu else COMPILES}; {IN_PYTHON}" if value == 0 else "")
        case "grad_for_scalar":
            return honoured({"graph.grad_for_scalar": value}, GRADIENTS)
        case "reserve_class_name_in_scope":
            return honoured({"observers.class_names": value})
        case "support_binary":
            differs = "Dynamo reads bytecode, so .pyc files suffice; extension modules (.so) run eagerly between compiled parts"
            return approximated({}, differs) if value else as_it_is()
        case "jit_syntax_level" if is_npu and value != STRICT:
            return compiled(on, differs="errors are raised when a graph first runs")
        case "jit_syntax_level":
            return compiled(on, differs="COMPATIBLE acts as LAX" if value == 1 else "")
        case "precompile_only":
            return compiled(on, differs=CAPTURED if is_npu and value else "")
        case "mix_compile_mode" if value and on.get("mode") != 0:
            return approximated({}, ALREADY_MIXED)
        case "input_shape" | "dynamic_dims" | "dynamic_inputs_shape_range" if on.get("mode") == 0:
            return compiled(on, OF_MODELS)
        case "dynamic_node_type":
            return compiled(on, differs="" if value else UNNAMED)
        case "save_graphs" | "save_graphs_path":
            return _saving(on, setting)
        case "graph_kernel_flags" if is_npu:
            return honoured(cause="its flags are separate options")
        case "graph_kernel_flags":
            return compiled(on) if value.strip() else as_it_is()
        case "graph_kernel_flags.opt_level" if is_npu and value > 1:
            return compiled(on, differs=f"acts as 1: {BY_CANN}")
        case "graph_kernel_flags.opt_level":
            return compiled(on, AGGRESSIVE if value == 3 else "")
        case "fusion_switch_file" if is_npu:
            return honoured({"torch.npu.engine_options": engine_options(on)}, f"{GRAPHS}; {ONCE}")
        case "fusion_switch_file":
            return _fusion_switch_file(on, setting)
        case "frozen_variable":
            return _frozen_variable(on) if value else as_it_is()
        case "disable_format_transform":  # inductor moves models: on a CPU, and in 16 bits on CUDA, it wants channels_last
            differs = "for code compiled inside, unless torch.compile has that option; eager code never changes formats"
            return approximated({"torch.inductor.layout_optimization": not value}, differs)
    if isinstance(setting.option, graph_kernel_flags.Flag):
        return _flag(on, setting, setting.option)
    return compiled(on)  # the others are only fields of the compilation


@once
def _compilation(on: On) -> Compilation:
    return Compilation(
        whole=on.get("jit_syntax_level", LAX) == STRICT or on.get("mix_compile_mode") is False,
        only=bool(on.get("precompile_only")),
        keeps={"O0": 1.0, "O1": 1e-9}.get(on.get("memory_optimize_level")) if on.get("mode") == 0 else None,
        shapes=shapes(on),
        region=region(on),
        config=search(on),
        **_fusion(on),
    )


def compilation(on: On) -> Compilation:
    """What all options of graph mode come to together."""
    return _compilation(on.deciding)


def region(on: On) -> Region | None:
    if (pair := on.get("in_out_pair")) is None:
        return None
    first, last = literal_eval(pair)
    return Region(tuple(first), tuple(last), bool(on.get("in_out_pair_flag", True)))


def shapes(on: On) -> Shapes:
    if on.get("input_shape") and on.get("dynamic_dims"):
        gears = gears_of(on.get("input_shape"), on.get("dynamic_dims"))
        return Shapes(gears=gears, named=on.get("dynamic_node_type") == 1, dynamic=False)
    if not on.get("dynamic_input"):
        own_code = False if on.get("jit_compile") == "true" else None
        return Shapes(dynamic=on.get("compile_dynamic_mode", own_code))
    ranges = ranges_of(given) if (given := on.get("dynamic_inputs_shape_range")) else ()
    lazy = on.get("dynamic_graph_execute_mode") == "lazy_recompile"
    return Shapes(ranges=ranges, dynamic=False if lazy else None if ranges else True)


def fused(on: On) -> bool | None:
    """Whether inductor fuses; None: as torch.compile does unasked."""
    level, enabled = on.get(LEVEL), on.get("enable_graph_kernel")
    found: bool | None = enabled if level is None else level > 0
    return found


def ready_made(on: On) -> bool:
    """Whether graphs run kernels of the libraries, one for each node, but on an NPU, whose engine has the option itself."""
    return all(on.get(name) is None for name in (LEVEL, "enable_graph_kernel")) and on.get("jit_compile") == "false"


def _fusion(on: On) -> dict[str, Any]:
    """What all options of fusion come to, as fields of :class:`msctx.options.switch_values.Compilation`."""
    flags = []
    for flag in FLAGS:
        there = on if on.device in flag.devices else on.at(flag.devices[0])  # what compiles is one for all devices
        s = there.settings.get(flag.name) if flag.settings else None
        if s is not None and s.value not in flag.refused and not hides(on, flag.name):
            flags.append((flag.word, s.value))
    passes = on.get("enable_scope_fusion_passes")
    return {
        "fused": fused(on),
        "ready_made": ready_made(on),
        "flags": tuple(flags),
        "fusion_switches": tuple(_switches(on)),
        "scope_passes": tuple(passes.split(",")) if passes else (),
        "weights": on.device == "cpu" and _has_algorithm(on, *DIRECTIONS),
        "epilogues": _has_algorithm(on, "fprop"),
        "races": raced(on) if fused(on) is not False else None,
        "frozen": bool(on.get(FROZEN)) and not hides(on, FROZEN),
    }


def _has_algorithm(on: On, *directions: str) -> bool:
    """Whether convolutions that inductor compiles for the CPU may have one."""
    names = requested_of(on.at("cpu"), *directions)
    return fused(on) is not False and any(name != RECORDED for _, name in names)


def hides(on: On, name: str) -> bool:
    """Whether an option would take convolutions away from the algorithm that is requested, on whichever device."""
    there = [on.at(device) for device in POLICY]
    return name in (TUNED, FROZEN, AS_PRODUCT) and any(conv_policy(one) and not only_records(one) for one in there)


def _switches(on: On) -> list[tuple[str, str, str]]:
    found = on.content("fusion_switch_file").get("Switch", {})
    return [(g, n, s) for g, names in found.items() for n, s in names.items() if not (s == "on" and hides(on, n))]


def compiled(on: On, cause: str = "", differs: str = "", more: dict[str, Any] | None = None) -> Outcome:
    """The outcome of an option that acts on compiled code."""
    found = {"graph.compilation": compilation(on)} | (more or {})
    if on.device == "ascend":
        cause = cause or BY_TORCHAIR
    alone = "" if on.get("mode") == 0 or more else ALONE
    if differs:
        return approximated(found, joined(differs, alone))
    return honoured(found, joined(cause, alone))


def graph_files(on: On) -> GraphFiles | None:
    level = on.get("save_graphs", 0)
    return GraphFiles(level, on.get("save_graphs_path", ".")) if level else None


def _saving(on: On, setting: Setting) -> Outcome:
    files = graph_files(on)
    if files is None:
        return honoured({"observers.graph_files": None}) if setting.option.name == "save_graphs" else as_it_is()
    found: dict[str, Any] = {"observers.graph_files": files} | apart(on)
    kept = cache(on.deciding)
    is_cached = kept is not None and not kept.off
    if not is_cached:
        found["torch.inductor.fx_graph_cache"] = False
    if files.level >= 3:
        found |= {"torch.inductor.trace.enabled": True, "torch.inductor.trace.debug_dir": files.path}
    return approximated(found, NO_STAGES if on.device == "ascend" else CACHED if is_cached else TEXT)


# --- what is fused ------------------------------------------------------------------------------------------------------


def _is_off(on: On) -> bool:
    return fused(on) is False or (on.device != "ascend" and ready_made(on))


def _not_fused(on: On) -> str:
    name = next((n for n in (LEVEL, "enable_graph_kernel") if on.get(n) is not None), "jit_compile")
    return f"nothing is fused: {name}={on.get(name)!r}"


def _flag(on: On, setting: Setting, flag: graph_kernel_flags.Flag) -> Outcome:
    value = setting.value.lower().replace("-", "_") if isinstance(setting.value, str) else setting.value
    if why := flag.holds.get(value):
        return as_it_is(why)
    if on.device == "ascend":
        if flag.word in EXTRAS and not setting.value:
            return as_it_is()
        if flag.word != DUMP:
            return refused(flag.why_not or BY_CANN)
    if why := flag.why_not or flag.refused.get(setting.value):
        return refused(why)
    if _is_off(on):
        return inert(_not_fused(on)) if setting.value else as_it_is(_not_fused(on))
    if hides(on, flag.name):
        return inert(KEEP_CONVOLUTIONS.format("max_autotune"))
    return compiled(on, differs=AS_TEXT if on.device == "ascend" else "")


def _fusion_switch_file(on: On, setting: Setting) -> Outcome:
    if _is_off(on):
        return inert(_not_fused(on))
    entries = {(g, n): _idle_pass(on, n, s) for g, found in setting.content["Switch"].items() for n, s in found.items()}
    return by_entry(entries, compiled(on))


def _idle_pass(on: On, name: str, state: str) -> str:
    """Why a pass has no switch here, or ``""``."""
    if name in WITHOUT_A_TWIN:
        return f"{name}: {WITHOUT_A_TWIN[name]}"
    if name not in TWINS and name != ALL:
        return f"{name} is no pass that is known"
    return f"{name}: {KEEP_CONVOLUTIONS.format('it')}" if state == "on" and hides(on, name) else ""


def _frozen_variable(on: On) -> Outcome:
    if on.device == "ascend":
        return compiled(on, FROZEN_BY_CANN)
    if _is_off(on):
        return inert(_not_fused(on))
    if hides(on, FROZEN):
        return refused(KEEP_CONVOLUTIONS.format("constant weights"))
    freezing = {"torch.inductor.freezing": True}  # Dynamo looks at it, too, before a back end is called
    return compiled(on, "only where no gradients are computed (torch.no_grad or inference_mode)", more=freezing)

"""What shows the inside of torch.compile: debugging of kernels, what was fused, what goes into a quantisation."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from msctx.effects import graph_engine
from msctx.effects.base import NOTHING_ASKED, Outcome, Want, approximated, effect, honoured, inert
from msctx.options import DEVICES
from msctx.options.ascend import SPEED_UP
from msctx.options.conv_rules import RULES, rules_of
from msctx.options.observation import Kernels

IN_GRAPHS = (
    *("recompute_comm_overlap", "matmul_grad_comm_overlap", "enable_task_opt", "enable_concat_eliminate_opt"),
    "compute_communicate_fusion_level",
)
"""The keys of parallel_speed_up_json_path that act on compiled code."""
LEFT_TO_NPU = "graphs that torchair compiles are left to torch_npu"
COUNTED = "torch counts a match where it takes effect; with code that it caches it keeps the sum of some patterns alone"
WHOLE = "a fused kernel holds several operators: op_debug_list keeps torch's caches on, and narrows nothing"
BINARIES = "the binaries stay in inductor's cache folder"
DIFFERS: dict[str, dict[str, str]] = {
    "oom": {
        "cpu": "",
        "cuda": "an index out of bounds ends the CUDA context; CUDA_LAUNCH_BLOCKING=1 names the operator, and compute-sanitizer the "
        "address",
        "ascend": "torch_npu checks its own kernels",
    },
    "dump_cce": dict.fromkeys(DEVICES, BINARIES),
    "dump_loc": dict.fromkeys(DEVICES, BINARIES),
    "ccec_O0": {
        "cpu": "inductor's -O0 comes with -g",
        "cuda": "inductor's -O0 comes with -g; of Triton's kernels, those that this process compiles itself are not optimised by "
        "ptxas",
        "ascend": "inductor's -O0 comes with -g; kernels of CANN are unchanged",
    },
    "check_flag": {
        "cpu": "check_flag has no meaning on a CPU, whose kernels have no pipelines to synchronise",
        "cuda": "races between streams are found in eager operators (torch.cuda._sanitizer)",
        "ascend": "torch_npu has no check_flag for eager operators; CANN's graph engine gets the file",
    },
}
"""Word of op_debug_config → device → what differs."""


def _content(want: Want) -> dict[str, list[str]]:
    setting = want.in_force("op_debug_config")
    return (setting.content or {}) if setting else {}


LEVELS = {1: ("dump_cce", "dump_loc"), 2: ("dump_cce", "dump_loc", "ccec_O0", "ccec_g"), 4: ("dump_cce", "dump_loc")}
"""op_debug_level → the words of op_debug_config for it; 3 keeps binaries, which inductor does by itself."""


def _words(want: Want) -> list[str]:
    level = want.in_force("op_debug_level")
    words = [*_content(want).get("op_debug_config", []), *(LEVELS.get(level.value, ()) if level is not None else ())]
    return [*dict.fromkeys(words)]


def _kernels(want: Want, words: Collection[str]) -> Kernels | None:
    if not {"dump_cce", "dump_loc"} & {*words}:
        return None
    return Kernels(path=want.other("debug_dir", ""), locations="dump_loc" in words)


def apart(want: Want) -> dict[str, Any]:
    """What distinguishes the code that is compiled under all these options; alike on all devices, which share the switch. Where its
    paths lead is found out when it is set."""
    words = [word for device in DEVICES for word in _apart(replace(want, device=device))]
    return {"torch.dynamo.apart": tuple(dict.fromkeys([*words, *graph_engine.words(want)])) or None}


def _apart(want: Want) -> list[str]:
    words = sorted(_words(want))
    if _kernels(want, words):
        words.append(f"debug_dir={want.other('debug_dir') or '.'}")
    if _marks(want):
        words.append("quant_dumpable")
    if want.other("save_graphs"):
        words += [f"save_graphs={want.other('save_graphs')}", f"save_graphs_path={want.other('save_graphs_path', '.')}"]
    if want.other("debug_level"):
        words.append("debug")
    if by_module(want):
        words.append("rules by module")
    found = ((name, want.other(f"{SPEED_UP}.{name}")) for name in IN_GRAPHS)
    return words + [f"{name}={value}" for name, value in found if value is not None]


def by_module(want: Want) -> bool:
    """Whether rules name modules: code that was compiled without such rules reads copies of the weights, which belong to none."""
    rules = (rule for name in RULES for rule in rules_of(want.other(name) or ""))
    return any(field == "module" for rule in rules for field, _ in rule.conditions)


def _marks(want: Want) -> bool:
    setting = want.in_force("quant_dumpable")
    return setting is not None and setting.value == "1"


@effect("op_debug_config")
def op_debug_config(want: Want) -> Outcome:
    words = _words(want)
    if not words:
        return NOTHING_ASKED
    if want.device == "cpu" and words == ["check_flag"]:
        return inert(DIFFERS["check_flag"]["cpu"])
    return _debugged(want, words)


@effect("op_debug_level")
def op_debug_level(want: Want) -> Outcome:
    on_device: dict[str, Any] = {}
    if want.device == "ascend":
        on_device = {"torch.npu.op_debug_level": str(want.value)} | graph_engine.with_graphs(want)
    if not (words := _words(want)):
        if want.value:
            return approximated(on_device, f"{BINARIES}; CANN keeps its own in debug_dir" if on_device else BINARIES)
        return honoured(on_device) if on_device else NOTHING_ASKED
    outcome = _debugged(want, words)
    if on_device:
        return approximated({**outcome.assignments, **on_device}, f"{BINARIES}; CANN keeps its own in debug_dir")
    differs = outcome.reason if BINARIES in outcome.reason else "; ".join(filter(None, (outcome.reason, BINARIES)))
    return approximated(outcome.assignments, differs)


def _debugged(want: Want, words: list[str]) -> Outcome:
    found = {
        "observers.kernels": _kernels(want, words),
        "torch.inductor.debug_index_asserts": "oom" in words,
        "torch.inductor.aot_inductor.debug_compile": "ccec_O0" in words,
        "torch.inductor.aot_inductor.debug_symbols": "ccec_g" in words,
    } | apart(want)
    if "oom" in words:
        found["torch.inductor.assert_indirect_indexing"] = True
    if "dump_loc" in words:
        found["torch.inductor.trace.provenance_tracking_level"] = 1
    if not _content(want).get("op_debug_list") and not want.other("enable_compile_cache"):
        found["torch.inductor.fx_graph_cache"] = False
    if want.device == "cuda":
        found["env.DISABLE_PTXAS_OPT"] = "1" if "ccec_O0" in words else None
        found["torch.cuda.sanitizer"] = "check_flag" in words
    if want.device == "ascend":
        found |= graph_engine.with_graphs(want) | ({"torch.npu.op_debug_option": "oom"} if "oom" in words else {})
    differs = dict.fromkeys(DIFFERS[word][want.device] for word in words if word in DIFFERS)
    if _content(want).get("op_debug_list"):
        differs[WHOLE] = None
    text = "; ".join(filter(None, differs))
    return approximated(found, text) if text else honoured(found)


@effect("debug_dir")
def debug_dir(want: Want) -> Outcome:
    kernels = _kernels(want, _words(want))
    found: dict[str, Any] = {} if kernels is None else {"observers.kernels": kernels} | apart(want)
    if want.device == "ascend":
        found |= {"torch.npu.debug_dir": want.value} | graph_engine.with_graphs(want)
    return honoured(found) if found else NOTHING_ASKED


@effect("export_compile_stat")
def export_compile_stat(want: Want) -> Outcome:
    found: dict[str, Any] = {"observers.fusions": want.value or None}
    if want.value:
        found["env.TORCHINDUCTOR_PATTERN_MATCH_DEBUG"] = "msctx"
    reasons = [COUNTED] if want.value else []
    if want.device == "ascend":
        found["torch.npu.engine_options"] = graph_engine.engine_options(want)
        reasons.append(f"CANN counts its own in graphs that torchair (torch_npu's compiler) makes; {graph_engine.ONCE}")
    return honoured(found, "; ".join(reasons))


@effect("quant_dumpable")
def quant_dumpable(want: Want) -> Outcome:
    on = _marks(want)
    found = {"torch.inductor.marks_quantized_inputs": on} | apart(want)
    return approximated(found, LEFT_TO_NPU) if want.device == "ascend" and on else honoured(found)


DEBUG = 10
"""The level of Python's logging."""
TRACED = (
    "of graphs that torchair compiles, what Dynamo and AOTAutograd trace is logged and checked; inductor has no part in them"
)


@effect("debug_level")
def debug_level(want: Want) -> Outcome:
    if not want.value:
        return NOTHING_ASKED
    found = {
        "torch.dynamo.verbose": True,
        "torch.functorch.debug_assert": True,
        "torch.inductor.trace.provenance_tracking_level": 1,
        "torch.logs.dynamo": DEBUG,
        "torch.logs.aot": DEBUG,
        "torch.logs.inductor": DEBUG,
    } | apart(want)
    return approximated(found, TRACED) if want.device == "ascend" else honoured(found)

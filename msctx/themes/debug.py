"""What helps to find faults: debugging of kernels, what was fused, errors that name the line that caused them."""

from __future__ import annotations

import logging
from typing import Any

from msctx.options import DEVICES, Setting
from msctx.options.kinds import Bool, Choice, Int, Path
from msctx.options.option import Option, session_option
from msctx.options.precision_policy import resolve
from msctx.options.rules import Excludes, Needs, Rule, When
from msctx.themes.base import On, Outcome, approximated, as_it_is, by_entry, honoured, joined
from msctx.themes.shared_by_themes import apart, debug_words, engine_options, kernels, with_graphs

KEEPS_SOURCES = When(
    "op_debug_config",
    test=lambda c: not {"dump_cce", "dump_loc"}.isdisjoint(c.get("op_debug_config", ())),
    words="with dump_cce or dump_loc",
)

# fmt: off
OPTIONS = (
    Option("pynative_synchronize", Bool, default=False, example=True, also=("runtime.launch_blocking",),
        help="Waits for the device after each eager operator, so that an error is raised at the line that caused it, and "
             "lets errors of the backward pass name the line of the forward. Slow; meant for debugging."),
    Option("debug_level", Choice({
            0: "torch's usual amount (RELEASE)", 1: "detailed logs, checks and the origin of each generated kernel (DEBUG)",
        }, {"RELEASE": 0, "DEBUG": 1}), default=0, example=1,
        help="How much the compiler keeps and logs about its work."),
    Option("max_call_depth", Int(1, 2**31 - 1), default=1000, example=2000, also=("set_recursion_limit",),
        help="How deep module calls may nest before a RuntimeError ends what is most likely an endless recursion; Python's "
             "own recursion limit is raised where it would be reached first."),
    session_option("op_debug_config", Path, example="op_debug.cfg", ge="ge.exec.opDebugConfig", content="OP_DEBUG",
        help="A .cfg file that turns on debugging of generated kernels, for all operators or for those it lists: checks of "
             "memory bounds (oom), saved sources (dump_cce, dump_loc), builds without optimisation (ccec_O0) or with symbols "
             "(ccec_g), checks of synchronisation (check_flag)."),
    session_option("debug_dir", Path, example="kernel_debug", ge="ge.debugDir",
        help="The directory for kernel_meta, where op_debug_config and op_debug_level save generated sources; unset: "
             "$ASCEND_WORK_PATH, else the current directory."),
    session_option("export_compile_stat", Choice({
            0: "the file is never written", 1: "when the program ends normally", 2: "as soon as a graph is compiled",
        }), default=1, example=2, ge="ge.exportCompileStat",
        help="When to write fusion_result.json: how often each fusion pass of torch.compile matched: to "
             "$ASCEND_WORK_PATH/FE/<pid>, else to the current directory."),
    session_option("op_debug_level", Choice({
            0: "nothing is kept", 1: "sources and their mapping to operators",
            2: "as 1, built with symbols and without optimisation", 3: "binaries and their descriptions",
            4: "binaries, descriptions, sources and what was fused",
        }), example=1, ge="ge.opDebugLevel",
        help="What to keep of generated kernels in debug_dir. Deprecated in favour of op_debug_config."),
)

RULES: tuple[Rule, ...] = (
    Excludes(When("op_debug_level", (2,)),
        When("op_debug_config", test=lambda c: "oom" in c.get("op_debug_config", ()), words="with oom")),
    Needs(When("debug_dir"), (KEEPS_SOURCES, When("op_debug_level", (1, 2, 4))), "inert", devices=("cpu", "cuda")),
)
# fmt: on

COUNTED = "counts matches that take effect, and totals for cached code"
BINARIES = "binaries stay in inductor's cache"
NO_PIPELINES = "check_flag: a CPU's kernels have no pipelines"
WITH_SYMBOLS = "inductor's -O0 comes with -g"
DIFFERS = {
    **dict.fromkeys(("dump_cce", "dump_loc"), (BINARIES, BINARIES, BINARIES)),
    "oom": ("", "out-of-bounds indices end the program", "torch_npu checks its kernels"),
    "ccec_O0": (
        WITH_SYMBOLS,
        "-O0 implies -g, and ptxas optimises nothing compiled here",
        f"{WITH_SYMBOLS}; kernels of CANN are unchanged",
    ),
    "check_flag": ("", "races only in eager code", "check_flag needs CANN's graph engine"),
}
"""Word of op_debug_config → what differs on each of the devices."""
COUNTED_BY_CANN = "CANN counts its own graphs"
ANOMALY = "also turns on anomaly mode; backward passes run in the thread that calls them"
INSIDE = ", and not every kernel in it is waited for"
FRAMES_PER_CALL = 5
"""Python frames that one nested module call takes (``_wrapped_call_impl``, ``_call_impl``, ``inner``, ``forward`` …)."""


def translate(on: On, setting: Setting) -> Outcome | None:
    """The outcome of one of these options."""
    value = setting.value
    match setting.option.name:
        case "pynative_synchronize":
            return _synchronized(on, value)
        case "max_call_depth":
            frames = min(1000 + FRAMES_PER_CALL * value, 2**31 - 1)
            differs = "module calls are counted, not Python functions; Python 3.12 stops some 230 modules deep"
            return approximated({"torch.nn.max_call_depth": value, "python.recursion_limit": frames}, differs)
        case "debug_level":
            return _debug_level(on) if value else as_it_is()
        case "op_debug_config":
            return _op_debug_config(on, words) if (words := debug_words(on)) else as_it_is()
        case "op_debug_level":
            return _op_debug_level(on, setting)
        case "debug_dir":
            saved = kernels(on, debug_words(on))
            found: dict[str, Any] = {} if saved is None else {"observers.kernels": saved} | apart(on)
            if on.device == "ascend":
                found |= {"torch.npu.debug_dir": value} | with_graphs(on)
            return honoured(found) if found else as_it_is()
        case "export_compile_stat":
            found = {"observers.fusions": value or None} | ({"env.TORCHINDUCTOR_PATTERN_MATCH_DEBUG": "msctx"} if value else {})
            counted = COUNTED if value else ""
            if on.device != "ascend":
                return honoured(found, counted)
            return honoured(found | {"torch.npu.engine_options": engine_options(on)}, joined(counted, COUNTED_BY_CANN))
    return None


def _op_debug_config(on: On, words: list[str]) -> Outcome:
    entries = {word: NO_PIPELINES if (on.device, word) == ("cpu", "check_flag") else "" for word in words}
    for name in on.content("op_debug_config").get("op_debug_list", ()) if on.device != "ascend" else ():
        if resolve(name.removeprefix("OpType::")) is None:
            entries[name] = f"{name} is no operator that is known"
    return by_entry(entries, _debugged(on, words))


def _op_debug_level(on: On, setting: Setting) -> Outcome:
    on_device: dict[str, Any] = {}
    if on.device == "ascend":
        on_device = {"torch.npu.op_debug_level": str(setting.value)} | with_graphs(on)
    if not (words := debug_words(on)):
        if setting.value:
            return approximated(on_device, f"{BINARIES}; CANN keeps its own in debug_dir" if on_device else BINARIES)
        return honoured(on_device) if on_device else as_it_is()
    outcome = _debugged(on, words)
    if on_device:
        return approximated({**outcome.assignments, **on_device}, f"{BINARIES}; CANN keeps its own in debug_dir")
    differs = outcome.reason if BINARIES in outcome.reason else joined(outcome.reason, BINARIES)
    return approximated(outcome.assignments, differs)


def _debugged(on: On, words: list[str]) -> Outcome:
    is_listed = bool(on.content("op_debug_config").get("op_debug_list"))
    found = {
        "observers.kernels": kernels(on, words),
        "torch.inductor.debug_index_asserts": "oom" in words,
        "torch.inductor.aot_inductor.debug_compile": "ccec_O0" in words,
        "torch.inductor.aot_inductor.debug_symbols": "ccec_g" in words,
    } | apart(on)
    if "oom" in words:
        found["torch.inductor.assert_indirect_indexing"] = True
    if "dump_loc" in words:
        found["torch.inductor.trace.provenance_tracking_level"] = 1
    if not is_listed and not on.get("enable_compile_cache"):
        found["torch.inductor.fx_graph_cache"] = False
    if on.device == "cuda":
        found["env.DISABLE_PTXAS_OPT"] = "1" if "ccec_O0" in words else None
        found["torch.cuda.sanitizer"] = "check_flag" in words
    if on.device == "ascend":
        found |= with_graphs(on) | ({"torch.npu.op_debug_option": "oom"} if "oom" in words else {})
    differs = dict.fromkeys(DIFFERS[word][DEVICES.index(on.device)] for word in words if word in DIFFERS)
    if is_listed:
        differs["a fused kernel holds several operators: op_debug_list keeps torch's caches on, and narrows nothing"] = None
    text = joined(*differs)
    return approximated(found, text) if text else honoured(found)


def _debug_level(on: On) -> Outcome:
    found = {
        "torch.dynamo.verbose": True,
        "torch.functorch.debug_assert": True,
        "torch.inductor.trace.provenance_tracking_level": 1,
        **dict.fromkeys(("torch.logs.dynamo", "torch.logs.aot", "torch.logs.inductor"), logging.DEBUG),
    } | apart(on)
    if on.device != "ascend":
        return honoured(found)
    traced = "torchair's own work is not logged or checked"
    return approximated(found, traced)


def _synchronized(on: On, is_on: bool) -> Outcome:
    """Operators of a CPU are synchronous as it is; anomaly mode lets errors of the backward pass name the forward line.

    Anomaly mode's check for NaN is left off: that would change which programs run. The backward pass runs in the calling
    thread, since torch's dispatch modes (which synchronise the device after each operator) belong to one thread.
    """
    anomaly = "without check_nan" if is_on else False
    found = {"torch.anomaly_mode": anomaly, "torch.autograd.multithreading": not is_on}
    if waits := {"cuda": "torch.cuda.synchronize_each_op", "ascend": "torch.npu.synchronize_each_op"}.get(on.device):
        found[waits] = is_on
    compiled = "errors of compiled code name the line that calls it" + INSIDE * (on.device != "cpu")
    return honoured(found, joined(ANOMALY, compiled * (on.get("mode") == 0)) if is_on else "")

"""What goes to CANN's graph engine with the graphs that torchair compiles: ge_options, and the options that are keys of its own.

On other devices these are carried out where they have a meaning in torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from msctx.effects.base import NOTHING_ASKED, Outcome, Want, approximated, effect, honoured, inert, refused
from msctx.options import known_to_ge
from msctx.options.registry import named

GRAPHS = "acts on graphs that torchair (torch_npu's compiler) makes"
ONCE = "the engine is initialised with the first of them, and keeps what it got then"
JIT = {"auto": "2", "true": "1", "false": "0"}
"""Values of jit_compile → of ge.jit_compile."""
WITH_GRAPHS = {
    "jit_compile": JIT,
    "atomic_clean_policy": {},
    "host_scheduling_max_threshold": {},
    "buffer_optimize": {},
    "stream_max_parallel_num": {},
    "ac_parallel_enable": {},
    "input_fusion_size": {},
    "enable_small_channel": {},
    "op_debug_level": {},
    "op_debug_config": {},
    "debug_dir": {},
    "op_compiler_cache_mode": {},
    "op_compiler_cache_dir": {},
}
"""The options that go with each graph → the engine's words for their values."""
WITH_ENGINE = ("fusion_switch_file", "export_compile_stat")
"""The options that it is initialised with."""
ALLOW_HF32 = "ge.exec.allow_hf32"
"""CANN's key for two options, with a digit for each."""
HF32 = ("conv_allow_hf32", "matmul_allow_hf32")
DIGITS = (
    f"{ALLOW_HF32} has a digit for convolutions and one for products; - stands for torch_npu's flag when a graph is compiled"
)
DUMPS = ("session.enable_dump", "dump_path", "dump_mode", "dump_step", "dump_layer", "dump_data", "quant_dumpable")


SENT = {*WITH_GRAPHS, *WITH_ENGINE, *DUMPS, "deterministic", "aoe_mode", "work_path", "aoe_config_file"}
"""The options whose keys the engine gets, from here or, of the last four, from torchair."""
PINNED = {"ge.opSelectImplmode": "high_precision", "ge.exec.staticMemoryPolicy": "2"}
"""What torchair initialises the engine with, whatever is set."""

OVERWRITTEN = (ALLOW_HF32, "ge.deterministicLevel", "ge.exec.deviceId")
"""What it has of its own for the engine, from torch_npu's flags, whatever a configuration holds."""


def _raw(want: Want, level: str) -> dict[str, str]:
    setting = want.in_force(f"ge_options.{level}")
    return (
        {key: text for key, text in setting.value.items() if key in _sendable(setting.value, level)}
        if setting is not None
        else {}
    )


def _sendable(keys: Iterable[str], level: str) -> list[str]:
    return [key for key in keys if not known_to_ge(key) and not (level == "global" and key in OVERWRITTEN)]


def graph_options(want: Want) -> dict[str, str]:
    """What goes with each graph; there the engine looks first, before what it was initialised with."""
    found = {}
    for name, words in WITH_GRAPHS.items():
        if (setting := want.in_force(name)) is not None:
            found[setting.option.ge] = words.get(setting.value, str(setting.value))
    return found | _hf32(want) | _dumps(want) | _raw(want, "session")


def _hf32(want: Want) -> dict[str, str]:
    """See DIGITS."""
    settings = [want.in_force(name) for name in HF32]
    digits = ["-" if setting is None else str(int(setting.value)) for setting in settings]
    return {ALLOW_HF32: "".join(digits)} if any(settings) else {}


def _dumps(want: Want) -> dict[str, str]:
    if not want.other("session.enable_dump") or not want.other("dump_path"):
        return {}
    settings = [setting for name in DUMPS if (setting := want.in_force(name)) is not None]
    return {s.option.ge: "1" if s.value is True else str(s.value) for s in settings}


def engine_options(want: Want) -> dict[str, str]:
    """What the engine is initialised with."""
    settings = [setting for name in WITH_ENGINE if (setting := want.in_force(name)) is not None]
    return {setting.option.ge: str(setting.value) for setting in settings} | _raw(want, "global")


def tuner(want: Want) -> dict[str, str] | None:
    """CANN's tuner of graphs, while they are compiled."""
    from msctx.effects.kernel_tuning import HERE, OPERATORS, job

    if job(want) != OPERATORS:
        return None
    path, file = want.in_force("work_path"), want.in_force("aoe_config_file")
    return {"mode": OPERATORS, "path": path.value if path is not None else HERE, "file": file.value if file is not None else ""}


def with_graphs(want: Want) -> dict[str, Any]:
    """The assignment of what goes with each graph, which keeps its code apart."""
    from msctx.effects.compilation import apart

    return {"torch.npu.graph_options": graph_options(want) or None} | apart(want)


def words(want: Want) -> list[str]:
    """What keeps code apart that torchair compiles under different options; alike on all devices."""
    if "ascend" not in want.facts.devices:
        return []
    there = replace(want, device="ascend")
    found = [f"{key}={value}" for key, value in graph_options(there).items()]
    return found + [f"tuner.{key}={value}" for key, value in (tuner(there) or {}).items()]


JIT_COMPILE = {"true": True, "false": False}
"""Values of jit_compile → of torch_npu's switch; it has none for auto."""
BY_CHIP = "torch_npu's default for this chip applies to eager operators; it has no `auto`"
BY_SHAPES = "torch.compile compiles for the shapes that come first, and then one kernel for those that change"
CLEARS_BY_ITSELF = "PyTorch's operators each zero their own memory, just before they add into it"
ONE_QUEUE = (
    "PyTorch runs the operators of a graph one after the other, in the order of the graph; a program can use streams itself"
)
BESIDE = "the host launches kernels and goes on: its own operators run beside those of the device, on the thread that calls"
FROM_THE_HOST = "compiled code launches its kernels one by one from the host, whatever its size"


def _in_graphs(want: Want, more: dict[str, Any] | None = None, differs: str = "") -> Outcome:
    found = with_graphs(want) | (more or {})
    return approximated(found, f"{differs}; {GRAPHS}") if differs else honoured(found, GRAPHS)


@effect("jit_compile")
def jit_compile(want: Want) -> Outcome:
    from msctx.effects.fusion import LEVEL
    from msctx.effects.graph_mode import ALONE, compilation

    if want.device == "ascend":
        more = {"torch.npu.jit_compile": JIT_COMPILE.get(want.value), "graph.compilation": compilation(want)}
        return _in_graphs(want, more, BY_CHIP if want.value == "auto" else "")

    if want.value == "auto":
        return approximated({}, BY_SHAPES)
    for name in (LEVEL, "enable_graph_kernel") if want.value == "false" else ("compile_dynamic_mode", "dynamic_input"):
        if want.other(name) is not None:
            return inert(f"overridden by {name}={want.other(name)!r}")
    return honoured({"graph.compilation": compilation(want)}, "" if want.other("mode") == 0 else ALONE)


@effect("atomic_clean_policy")
def atomic_clean_policy(want: Want) -> Outcome:
    if want.device == "ascend":
        return _in_graphs(want)
    if want.value == 1:
        return honoured(reason=CLEARS_BY_ITSELF)
    return refused(f"{CLEARS_BY_ITSELF}; one block of memory for all of them would be held while the whole graph runs")


@effect("host_scheduling_max_threshold")
def host_scheduling_max_threshold(want: Want) -> Outcome:
    if want.device == "ascend":
        return _in_graphs(want)
    if want.value == 0:
        return approximated({}, FROM_THE_HOST) if want.device == "cpu" else NOTHING_ASKED
    if want.device == "cpu":
        return honoured(reason=FROM_THE_HOST)
    return approximated({}, f"{FROM_THE_HOST}; CUDA graphs that a program asks for itself stay as they are")


@effect("ac_parallel_enable")
def ac_parallel_enable(want: Want) -> Outcome:
    if want.device == "ascend":
        return _in_graphs(want)
    if want.device == "cpu":
        return refused("the host is the device here: there is nothing beside it") if want.value == "1" else NOTHING_ASKED
    if want.value == "0":
        return refused(BESIDE)
    return approximated({}, BESIDE)


@effect("buffer_optimize")
def buffer_optimize(want: Want) -> Outcome:
    if want.device == "ascend":
        return _in_graphs(want)
    from msctx.effects.compilation import apart

    on = want.value == "l2_optimize"
    found = {
        "torch.inductor.allow_buffer_reuse": on,
        "torch.inductor.inplace_buffers": on,
        "torch.inductor.reorder_for_locality": on,
    }
    found = found | apart(want)
    if want.other("env_config_path.sys.mem_reuse") is False and on:
        return inert("overridden by env_config_path.sys.mem_reuse=False, under which no tensor gets memory of another one")
    return honoured(found, "in code that torch.compile makes")


@effect("stream_max_parallel_num")
def stream_max_parallel_num(want: Want) -> Outcome:
    if want.device == "ascend":
        return _in_graphs(want)
    numbers = {int(pair.rpartition(":")[2]) for pair in want.value.split(",")}
    return honoured(reason=ONE_QUEUE) if numbers == {1} else refused(ONE_QUEUE)


@effect("ge_options.global")
def of_the_engine(want: Want) -> Outcome:
    return _raw_keys(want, "global", {"torch.npu.engine_options": engine_options(want)}, ONCE)


@effect("ge_options.session")
def of_a_session(want: Want) -> Outcome:
    return _raw_keys(want, "session", with_graphs(want), "torchair has one session: they go with each graph")


def _raw_keys(want: Want, level: str, assignments: dict[str, Any], how: str) -> Outcome:
    if not want.value:
        return NOTHING_ASKED
    if want.device != "ascend":
        return inert("ge_options goes to CANN's graph engine, which Ascend alone has")
    left = _sendable(want.value, level)
    lost = [key for key in want.value if key not in left and not known_to_ge(key)]
    unsent = [key for key in want.value if known_to_ge(key) and named(key).name not in SENT]
    pinned = [f"{key}={PINNED[key]}" for key in unsent if PINNED.get(key, want.value[key]) != want.value[key]]
    overwrites = f"torchair overwrites {', '.join(lost)} in the engine; ge_options.session sends keys with each graph"
    if len(lost) == len(want.value):
        return refused(overwrites)
    reasons = [f"{', '.join(left)}: {GRAPHS}; {how}"] if left else ["its keys are options of their own"]
    reasons += [f"{', '.join(unsent)}: carried out by msctx, the engine does not get it"] if unsent else []
    reasons += [f"in graphs torchair's {', '.join(pinned)} holds"] if pinned else []
    reasons += [overwrites] if lost else []
    return (approximated if pinned or lost else honoured)(assignments if left else {}, "; ".join(reasons))

"""Values of inductor's configuration: in every thread, before and after inductor is loaded."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
import torch

from msctx import torch_config_overrides
from msctx.switches import SWITCHES, torch_compiler

VARIABLES = {
    "torch.inductor.deterministic": "TORCHINDUCTOR_DETERMINISTIC",
    "torch.inductor.cpp_wrapper": "TORCHINDUCTOR_CPP_WRAPPER",
    "torch.inductor.layout_optimization": "TORCHINDUCTOR_LAYOUT_OPTIMIZATION",
    "torch.inductor.freezing": "TORCHINDUCTOR_FREEZING",
    "torch.inductor.max_autotune": "TORCHINDUCTOR_MAX_AUTOTUNE",
    "torch.inductor.max_autotune_gemm": "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM",
    "torch.inductor.max_autotune_conv_backends": "TORCHINDUCTOR_MAX_AUTOTUNE_CONV_BACKENDS",
    "torch.inductor.memory_planning": "TORCHINDUCTOR_MEMORY_PLANNING",
    "torch.inductor.aot_inductor.debug_compile": "AOT_INDUCTOR_DEBUG_COMPILE",
    "torch.inductor.aot_inductor.debug_symbols": "AOT_INDUCTOR_DEBUG_SYMBOLS",
    "torch.inductor.fx_graph_cache": "TORCHINDUCTOR_FX_GRAPH_CACHE",
    "torch.inductor.cpp_cache_precompile_headers": "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS",
    "torch.inductor.trace.provenance_tracking_level": "INDUCTOR_PROVENANCE",
}
SOURCE = Path(torch.__path__[0], "_inductor", "config.py").read_text(encoding="utf-8")
VARIABLES = {name: variable for name, variable in VARIABLES.items() if variable in SOURCE}  # torch 2.11 reads fewer
LACKING = {"torch.inductor.batch_invariant"} if torch_compiler.obstacle() else set()
"""What torch 2.11 has not."""
FORCED = [*(name for name in torch_compiler._FORCED if name not in LACKING), "torch.inductor.trace.debug_dir"]
BUCKETS = [f"torch.inductor.bucket_{kind}_fx" for kind in ("all_gathers", "reduce_scatters", "all_reduces")]
PASSES = "torch.inductor.reorder_for_compute_comm_overlap_passes"
DEFAULTS = {
    **dict.fromkeys([*torch_compiler._DEFAULTS, *FORCED], False),
    "torch.inductor.layout_optimization": True,
    "torch.inductor.max_autotune_conv_backends": "ATEN,TRITON",
    "torch.inductor.trace.debug_dir": None,
    "torch.inductor.allow_buffer_reuse": True,
    "torch.inductor.inplace_buffers": True,
    "torch.inductor.reorder_for_locality": True,
    "torch.inductor.assert_indirect_indexing": True,
    "torch.inductor.fx_graph_cache": True,
    "torch.inductor.autotune_local_cache": True,
    "torch.inductor.cpp_cache_precompile_headers": True,
    **dict.fromkeys(BUCKETS, "none"),
    PASSES: [],
}
OTHERS = {name: not value for name, value in DEFAULTS.items()} | {
    "torch.inductor.max_autotune_conv_backends": "ATEN",
    "torch.inductor.trace.debug_dir": "/traces",
    **dict.fromkeys(BUCKETS, "all"),
    PASSES: ["sink_waits"],
}
WORDS = {variable: {False: "0", True: "1"}.get(OTHERS[name], "Aten") for name, variable in VARIABLES.items()}  # type: ignore[call-overload]
SCRIPT = (
    f"""
import os, sys, threading, traceback, torch
from msctx.switches import SWITCHES
defaults, others, variables, words = {DEFAULTS}, {OTHERS}, {VARIABLES}, {WORDS}
switches = {{name.removeprefix("torch.inductor."): SWITCHES[name] for name in defaults}}
forced = {{name.removeprefix("torch.inductor."): SWITCHES[name] for name in {FORCED}}}
defaults, others = ({{name.removeprefix("torch.inductor."): value for name, value in v.items()}} for v in (defaults, others))
"""
    + """
def everywhere(look):
    "In this thread and in another"
    found = [look()]
    thread = threading.Thread(target=lambda: found.append(look())); thread.start(); thread.join()
    return found
def read():
    from torch._inductor import config
    return {key: getattr(config, key) for key in defaults}
def is_loaded():
    return "torch._inductor.config" in sys.modules
def users(keys, values):
    "What a program sets, in this thread"
    import torch._inductor.config as config
    for key in keys:
        setattr(config, key, values[key])

def a_value_in_every_thread(loaded):
    assert {key: switch.read() for key, switch in switches.items()} == defaults
    assert not is_loaded(), "to load inductor is a second's work"
    if loaded:
        users(defaults, defaults)
    states = {key: switch.take() for key, switch in switches.items()}
    for key, switch in switches.items():
        switch.set(others[key])
    assert {key: switch.read() for key, switch in switches.items()} == others
    assert everywhere(read) == [others] * 2, everywhere(read)
    for key, switch in switches.items():
        switch.put_back(states[key])
    assert everywhere(read) == [defaults] * 2, everywhere(read)
    assert not {*variables.values()} & set(os.environ)

def nothing_overrules_what_is_forced(loaded):
    "torch.compile patches the configuration with its own options while it compiles, and puts back what it has read."
    found = others if loaded else defaults
    if loaded:
        users(forced, others)
    outer = {key: switch.take() for key, switch in forced.items()}
    for key, switch in forced.items():
        switch.set(others[key])
    inner = {key: switch.take() for key, switch in forced.items()}
    for key, switch in forced.items():
        switch.set(defaults[key])
        assert switch.is_satisfied(defaults[key]) and not switch.is_satisfied(others[key])
    from torch._inductor import config
    def compiles():
        with config.patch({key: others[key] for key in forced}):
            on_disk = config.save_config_portable()  # what tells compiled code apart in inductor's caches
            return [getattr(config, key) == on_disk.get(key, defaults[key]) == defaults[key] for key in forced]
    assert everywhere(compiles) == [[True] * len(forced)] * 2
    for key, switch in forced.items():
        switch.put_back(inner[key])
        assert getattr(config, key) == switch.read() == others[key]
    for key, switch in forced.items():
        switch.put_back(outer[key])
        assert getattr(config, key) == switch.read() == found[key]
        for value in (defaults[key], others[key]):
            with config.patch({key: value}):
                assert getattr(config, key) == value, "it is still forced"
            assert not switch.is_satisfied(value), "it can be overruled, so it has to be written"

def inductor_that_is_never_loaded_leaves_no_trace(_):
    finders = list(sys.meta_path)
    states = {key: switch.take() for key, switch in switches.items()}
    for key, switch in switches.items():
        switch.set(others[key])
    for key, switch in switches.items():
        switch.put_back(states[key])
    assert {key: switch.read() for key, switch in switches.items()} == defaults
    assert sys.meta_path == finders
    assert not is_loaded()

def its_variables_and_defaults_are_known_before(given):
    os.environ.update(words if given else {})
    before = {key: switch.read() for key, switch in switches.items()}
    assert before == read(), (before, read())
    changed = [name.removeprefix("torch.inductor.") for name in variables] if given else []
    assert before == defaults | {key: others[key] for key in changed}

for check in (
    a_value_in_every_thread, nothing_overrules_what_is_forced, inductor_that_is_never_loaded_leaves_no_trace,
    its_variables_and_defaults_are_known_before,
):
    for case in (False, True):
        sys.stdout.flush()
        if (child := os.fork()) == 0:  # a process that has not loaded inductor yet
            try:
                check(case)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
            print(check.__name__, case)
"""
)


@pytest.mark.full
def test_values_hold_in_every_thread_whether_inductor_is_loaded_or_not(passes: Callable[..., str]) -> None:
    assert passes(SCRIPT) == ""


def test_only_what_the_plan_knows_of_is_not_there() -> None:
    owners = [getattr(row.write, "__self__", None) for row in SWITCHES.values()]
    values = [one for one in owners if isinstance(one, torch_config_overrides.Forced)]
    found = {one.key for one in values if one.key not in import_module(one.module)._config}
    assert len(values) > len(FORCED)
    assert {f"torch.inductor.{key}" for key in found} == LACKING

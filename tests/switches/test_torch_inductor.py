"""Values of inductor's configuration: in every thread, before and after inductor is loaded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from msctx.switches import torch_inductor

VARIABLES = {key: variable for key, (variable, _) in torch_inductor._FLAGS.items()} | {
    "freezing": "TORCHINDUCTOR_FREEZING",
    "max_autotune": "TORCHINDUCTOR_MAX_AUTOTUNE",
    "max_autotune_gemm": "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM",
    "max_autotune_conv_backends": "TORCHINDUCTOR_MAX_AUTOTUNE_CONV_BACKENDS",
    "memory_planning": "TORCHINDUCTOR_MEMORY_PLANNING",
}
DEFAULTS = {key: default == "1" for key, (_, default) in torch_inductor._FLAGS.items()} | {
    **dict.fromkeys(torch_inductor._FORCED, False),
    "max_autotune_conv_backends": "ATEN,TRITON",
    "allow_buffer_reuse": True,
    "inplace_buffers": True,
}
OTHERS = {key: "ATEN" if key == "max_autotune_conv_backends" else not value for key, value in DEFAULTS.items()}
PRELUDE = f"""
import os, sys, threading, torch
from msctx.switches import SWITCHES
defaults, others, forced = {DEFAULTS}, {OTHERS}, {list(torch_inductor._FORCED)}
switches = {{key: SWITCHES["torch.inductor." + key] for key in defaults}}
def everywhere(look):
    "In this thread and in another"
    found = [look()]
    thread = threading.Thread(target=lambda: found.append(look())); thread.start(); thread.join()
    return found
def read():
    from torch._inductor import config
    return {{key: getattr(config, key) for key in defaults}}
"""


@pytest.mark.parametrize("loaded", [False, True])
def test_a_value_in_every_thread(loaded: bool, passes: Callable[..., str]) -> None:
    """In a fresh process; to load inductor is a second's work, so it is not loaded for the switches alone."""
    passes(f"""{PRELUDE}
assert {{key: switch.read() for key, switch in switches.items()}} == defaults
assert "torch._inductor.config" not in sys.modules
if {loaded}:
    import torch._inductor.config
    for key, value in defaults.items():
        setattr(torch._inductor.config, key, value)  # this thread's own
states = {{key: switch.take() for key, switch in switches.items()}}
for key, switch in switches.items():
    switch.set(others[key])
assert {{key: switch.read() for key, switch in switches.items()}} == others
assert everywhere(read) == [others] * 2, everywhere(read)
for key, switch in switches.items():
    switch.put_back(states[key])
assert everywhere(read) == [defaults] * 2, everywhere(read)
assert not set({list(VARIABLES.values())}) & set(os.environ)
    """)


@pytest.mark.parametrize("loaded", [False, True])
def test_nothing_overrules_what_is_forced(loaded: bool, passes: Callable[..., str]) -> None:
    """torch.compile patches the configuration with its own options while it compiles, and puts back what it has read."""
    passes(f"""{PRELUDE}
switches = {{key: switches[key] for key in forced}}
found = others if {loaded} else defaults
if {loaded}:
    import torch._inductor.config
    for key in forced:
        setattr(torch._inductor.config, key, others[key])  # the user's, in this thread
outer = {{key: switch.take() for key, switch in switches.items()}}
for key, switch in switches.items():
    switch.set(others[key])
inner = {{key: switch.take() for key, switch in switches.items()}}
for key, switch in switches.items():
    switch.set(defaults[key])
    assert switch.is_satisfied(defaults[key]) and not switch.is_satisfied(others[key])

from torch._inductor import config
def compiles():
    with config.patch({{key: others[key] for key in forced}}):
        on_disk = config.save_config_portable()  # what tells compiled code apart in inductor's caches
        return [getattr(config, key) == on_disk[key] == defaults[key] for key in forced]
assert everywhere(compiles) == [[True] * len(forced)] * 2
for key, switch in switches.items():
    switch.put_back(inner[key])
    assert getattr(config, key) == switch.read() == others[key]
for key, switch in switches.items():
    switch.put_back(outer[key])
    assert getattr(config, key) == switch.read() == found[key]
    for value in (defaults[key], others[key]):
        with config.patch({{key: value}}):
            assert getattr(config, key) == value, "it is still forced"
        assert not switch.is_satisfied(value), "it can be overruled, so it has to be written"
    """)


def test_inductor_that_is_never_loaded_leaves_no_trace(passes: Callable[..., str]) -> None:
    passes(f"""{PRELUDE}
finders = list(sys.meta_path)
states = {{key: switch.take() for key, switch in switches.items()}}
for key, switch in switches.items():
    switch.set(others[key])
for key, switch in switches.items():
    switch.put_back(states[key])
assert {{key: switch.read() for key, switch in switches.items()}} == defaults
assert sys.meta_path == finders
assert "torch._inductor.config" not in sys.modules
    """)


@pytest.mark.parametrize("variables", [False, True])
def test_before_inductor_is_loaded_its_variables_and_defaults_are_known(variables: bool, passes: Callable[..., str]) -> None:
    values = {key: {False: "0", True: "1"}.get(OTHERS[key], "Aten") for key in VARIABLES}  # type: ignore[call-overload]
    passes(
        f"""{PRELUDE}
before = {{key: switch.read() for key, switch in switches.items()}}
assert before == read(), (before, read())
assert before == defaults | {{key: others[key] for key in {list(VARIABLES) if variables else []}}}
    """,
        env={VARIABLES[key]: value for key, value in values.items()} if variables else {},
    )

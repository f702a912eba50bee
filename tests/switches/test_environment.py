"""Environment variables that are read once, and Python's limits."""

from __future__ import annotations

import os
import sys

import pytest
from torch.distributed import distributed_c10d

from msctx.switches import SWITCHES

VARIABLES = [name for name in SWITCHES if name.startswith("env.")]


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_is_set_and_unset(name, monkeypatch):
    variable = name.removeprefix("env.")
    monkeypatch.delenv(variable, raising=False)
    switch = SWITCHES[name]
    assert switch.read() is None
    switch.set("x")
    assert (os.environ[variable], switch.read()) == ("x", "x")
    switch.set(None)
    assert variable not in os.environ


WILL_DO = {
    "CUBLAS_WORKSPACE_CONFIG": (":4096:8", {":4096:8": True, ":16:8": True, ":0:0": False, None: False}),
    "NCCL_ALGO": (
        "Ring",
        {"Ring": True, "ring,CollnetChain": True, "^NVLS": True, "Ring;AllReduce:CollnetDirect": True}
        | {"Ring;AllReduce:NVLS": False, "Tree,Ring": False, "": False, None: False},
    ),
    "HCCL_DETERMINISTIC": ("true", {"true": True, "strict": True, "STRICT": True, "false": False, None: False}),
}
"""Variable → what is requested, and whether it holds under other values: what keeps bits or an order as well, or more strictly."""


@pytest.mark.parametrize("variable", WILL_DO)
def test_what_serves_as_well_is_left_as_it_is(variable, monkeypatch):
    requested, values = WILL_DO[variable]
    for value, served in values.items():
        monkeypatch.delenv(variable, raising=False)
        if value is not None:
            monkeypatch.setenv(variable, value)
        assert SWITCHES[f"env.{variable}"].is_satisfied(requested) is served, value


@pytest.mark.parametrize(
    ("backend", "names"),
    [("nccl", ["NCCL_ALGO"]), ("hccl", ["HCCL_DETERMINISTIC", "HCCL_EXEC_TIMEOUT", "HCCL_EVENT_TIMEOUT"])],
)
def test_any_process_group_keeps_what_it_was_made_with(backend, names, monkeypatch):
    """Also one beside a default group of another back end."""
    groups = distributed_c10d._world.pg_backend_config
    monkeypatch.setitem(groups, object(), "cpu:gloo,cuda:gloo")
    switches = [SWITCHES[f"env.{name}"] for name in names]
    assert [switch.blocked("Ring") for switch in switches] == [""] * len(names)
    monkeypatch.setitem(groups, object(), f"far:{backend}")
    assert all("init_process_group" in switch.blocked("Ring") for switch in switches)


def test_a_group_of_hccl_gets_determinism_from_torch_npu(monkeypatch):
    """By a call that HCCL ignores where the variable is set."""
    monkeypatch.delenv("HCCL_DETERMINISTIC", raising=False)
    monkeypatch.setitem(distributed_c10d._world.pg_backend_config, object(), "npu:hccl")
    assert SWITCHES["env.HCCL_DETERMINISTIC"].is_satisfied("true")
    monkeypatch.setenv("HCCL_DETERMINISTIC", "false")
    assert not SWITCHES["env.HCCL_DETERMINISTIC"].is_satisfied("true")


def test_pythons_limit_is_never_lowered():
    switch, found = SWITCHES["python.recursion_limit"], sys.getrecursionlimit()
    assert switch.is_satisfied(found - 1)
    assert switch.is_satisfied(found)
    assert not switch.is_satisfied(found + 1)


def test_patterns_are_counted_under_any_text(monkeypatch):
    switch = SWITCHES["env.TORCHINDUCTOR_PATTERN_MATCH_DEBUG"]
    monkeypatch.setenv("TORCHINDUCTOR_PATTERN_MATCH_DEBUG", "some_node")
    assert switch.is_satisfied("msctx")
    monkeypatch.delenv("TORCHINDUCTOR_PATTERN_MATCH_DEBUG")
    assert not switch.is_satisfied("msctx")

"""Environment variables that are read once, and Python's limits."""

from __future__ import annotations

import os
import sys

import pytest

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


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_says_until_when_it_is_read(name):
    assert (SWITCHES[name].restore, bool(SWITCHES[name].only_before)) == ("never", True)


@pytest.mark.parametrize(("value", "served"), [(":4096:8", True), (":16:8", True), (":0:0", False), (None, False)])
def test_any_workspace_that_keeps_its_bits_will_do(value, served, monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    if value:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", value)
    assert SWITCHES["env.CUBLAS_WORKSPACE_CONFIG"].is_satisfied(":4096:8") is served


def test_pythons_limit_is_never_lowered():
    switch, found = SWITCHES["python.recursion_limit"], sys.getrecursionlimit()
    assert switch.is_satisfied(found - 1)
    assert switch.is_satisfied(found)
    assert not switch.is_satisfied(found + 1)

"""The switches of graph mode: each is read back, and what was found comes back."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import asdict

import pytest
import torch
from torch import nn

from msctx.options.graph import Compilation
from msctx.switches import SWITCHES


def test_what_was_found_comes_back() -> None:
    for name, value, shown in (
        ("graph.compilation", Compilation(whole=True), asdict(Compilation(whole=True))),
        ("graph.modules", True, True),
        ("torch.dynamo.force_eager", True, True),
    ):
        switch = SWITCHES[name]
        state, before = switch.take(), switch.read()
        switch.set(value)
        assert switch.read() == shown
        assert switch.is_satisfied(value)
        inner = switch.take()
        switch.set(type(value)() if isinstance(value, bool) else None)
        switch.put_back(inner)
        assert switch.read() == shown
        switch.put_back(state)
        assert switch.read() == before


def test_a_stance_of_the_program_comes_back() -> None:
    torch.compiler.set_stance("fail_on_recompile")
    try:
        switch = SWITCHES["torch.dynamo.force_eager"]
        state = switch.take()
        switch.set(True)
        switch.put_back(state)
        assert torch._dynamo.eval_frame._stance.stance == "fail_on_recompile"
        switch.set(False)
        assert torch._dynamo.eval_frame._stance.stance == "fail_on_recompile", "false leaves the program's own"
        switch.put_back(state)
    finally:
        torch.compiler.set_stance("default")


def test_what_stands_on_the_class_of_modules_comes_back() -> None:
    switch, own = SWITCHES["graph.modules"], property(lambda module: None)
    nn.Module._compiled_call_impl = own  # type: ignore[assignment, method-assign]
    try:
        state = switch.take()
        switch.set(True)
        switch.put_back(state)
        assert vars(nn.Module)["_compiled_call_impl"] is own
    finally:
        nn.Module._compiled_call_impl = None


@pytest.mark.full
def test_pynative_mode_does_not_load_dynamo(run_forked: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = run_forked("""
        import sys, torch, msctx
        with msctx.context(mode="PYNATIVE_MODE"):
            assert "torch._dynamo" not in sys.modules
            f, ran = None, []
            def backend(graph, inputs):
                ran.append(1)
                return graph.forward
            f = torch.compile(torch.sin, backend=backend)
            f(torch.ones(1))
            assert not ran, "eager"
        f(torch.ones(1))
        assert ran
        """)
    assert done.returncode == 0, done.stderr

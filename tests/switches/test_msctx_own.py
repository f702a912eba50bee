"""Switches of msctx's own parts: they read what was written, and give back what was found; a thread has its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from context_helpers import in_thread
from torch import _C

from msctx.switches import SWITCHES
from msctx.themes.observe import _recorder

THREAD = ("models.saved_on_host", "models.copies_of_parameters")


@pytest.mark.parametrize("name", [*THREAD, "observers.class_names", "session.iterations_per_loop"])
def test_each_thread_has_its_own(name: str) -> None:
    switch, found = SWITCHES[name], SWITCHES[name].read()
    switch.write(not found)
    there = in_thread(switch.read)
    switch.write(found)
    assert there == found


def test_one_pair_of_hooks_serves_both() -> None:
    for name in THREAD:
        SWITCHES[name].write(True)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda packed: packed):
        pass
    for name in THREAD:
        assert _C._autograd._top_saved_tensors_default_hooks(True) is not None
        SWITCHES[name].write(False)
    assert _C._autograd._top_saved_tensors_default_hooks(True) is None


def test_it_reads_what_was_written_until_it_is_put_back(tmp_path: Path) -> None:
    switch = SWITCHES["torch.profiler"]
    found, value = switch.take(), _recorder({"output": str(tmp_path)})
    switch.set(value)
    assert switch.read() == value
    switch.put_back(found)
    assert switch.read() is None

"""torch.profiler as a switch: it reads what was written, and writes files when it is put back."""

from __future__ import annotations

from pathlib import Path

import torch

from msctx.effects.profiling import _recorder
from msctx.switches import SWITCHES


def test_what_is_written_is_read_back_and_taken_back(tmp_path: Path) -> None:
    switch = SWITCHES["torch.profiler"]
    assert switch.read() is None
    found, value = switch.take(), _recorder({"output": str(tmp_path)})
    switch.set(value)
    assert switch.read() == value
    assert torch.autograd._profiler_enabled()
    torch.ones(2) + 1
    switch.put_back(found)
    assert switch.read() is None
    assert not torch.autograd._profiler_enabled()
    assert len([*tmp_path.iterdir()]) == 4

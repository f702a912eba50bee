"""torch.profiler as a switch."""

from __future__ import annotations

from pathlib import Path

from msctx.switches import SWITCHES
from msctx.themes.observe import _recorder


def test_it_reads_what_was_written_until_it_is_put_back(tmp_path: Path) -> None:
    switch = SWITCHES["torch.profiler"]
    found, value = switch.take(), _recorder({"output": str(tmp_path)})
    switch.set(value)
    assert switch.read() == value
    switch.put_back(found)
    assert switch.read() is None

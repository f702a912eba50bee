"""Tuning files for tests: entries that say what a test wants, whoever would be fastest."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from msctx.native import core, tuning_file, tuning_in_core
from msctx.native.tuning_file import Entry, Groups, Stamp, stamp

USUAL = "strict, fp32-grade"
"""The permissions of a context that sets none."""
IS_BUSY = tuning_in_core.is_busy
"""The real one, which tests/conftest.py replaces."""
CALM = "from msctx.native import tuning_in_core; tuning_in_core.is_busy = lambda: False"
"""The same in another interpreter."""
PERFORMANCE = {f"conv_{d}_algo": "performance" for d in ("fprop", "dgrad", "wgrad")}


def here() -> Stamp:
    """The stamp of this process."""
    return stamp(core.load())


def measurements() -> int:
    return core.load().c.msctx_measurements()


def entry(problem: str, ran: str = "direct", **more: Any) -> Entry:
    math = "torch" if ran == "torch" else "strict"
    said = {"direction": "fprop", "threads": torch.get_num_threads(), "permissions": USUAL, "when": "2026-01-02T03:04Z"}
    said |= {"math": math, "measured": {"torch": 2.0, ran: 1.0, "fft": None}, "again": 1.01}
    return Entry(problem=problem, ran=ran, **(said | more))


def groups(*entries: Entry, stamp: Stamp | None = None) -> Groups:
    return {stamp or here(): {e.key: e for e in entries}}


def write(path: Path, *entries: Entry, **stamp: str) -> Path:
    """A tuning file with these entries; *stamp*: fields in which theirs is another than that of this process."""
    path.write_text(tuning_file.text_of(groups(*entries, stamp=replace(here(), **stamp))))
    return path


def entries(path: Path) -> list[Entry]:
    return [e for group in tuning_file.read(path).values() for e in group.values()]

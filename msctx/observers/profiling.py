"""Runs torch.profiler while ``profiling_mode`` is on, and writes a trace and a table of operators at the end.

One recording lasts as long as the scope. torch.profiler must not stop or restart inside a range that is open, and an optimizer's
step is one: PyTorch 2.13 then writes to memory that it has freed.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from msctx.notices import warn
from msctx.observers import files, folder, steps
from msctx.observers.module_ranges import ModuleRanges

MOST_STEPS = 100
"""Memory holds the events of so many steps; with Python's stacks, which are most of a trace, of a fifth. Later ones are left out."""
ROWS = 100
"""Of the table: the operators that take longest."""
Options = Mapping[str, Any]


class _Recording:
    """From a write of the switch to the next."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._folder = Path(options["output"]).absolute()  # the program may change its directory
        self._process, self._thread = os.getpid(), threading.current_thread()
        self._modules = None if options["modules"] is None else ModuleRanges(classes=options["modules"])
        self._counting = steps.counting(self._end_step)
        self._activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
        self._left = MOST_STEPS // 5 if options["stacks"] else MOST_STEPS
        self._error = ""
        self._is_on = False
        self._profile: profile | None = None

    def begin(self) -> None:
        if torch._C._autograd._profiler_enabled():
            _warn("another profiler of torch runs, and torch runs one at a time: nothing is recorded")
            return
        self._is_on = True
        self._counting.__enter__()
        if self._modules is not None:
            self._modules.begin()
        self._call(self._start)

    def _start(self) -> None:
        started = profile(
            activities=self._activities,
            schedule=schedule(wait=0, warmup=0, active=sys.maxsize) if self.options["steps"] else None,
            on_trace_ready=self._write,
            record_shapes=self.options["shapes"],
            with_stack=self.options["stacks"],
        )
        started.start()
        self._profile = started

    def end(self) -> None:
        if not self._is_on or os.getpid() != self._process:  # the parent of a fork writes
            return
        self._is_on = False
        if self._modules is not None:
            self._modules.end()
        self._counting.__exit__(None, None, None)
        if threading.current_thread() is not self._thread:
            _warn("the context was left by another thread, which torch.profiler does not allow; nothing is written")
            return
        if self._profile is not None:
            self._call(self._profile.stop)

    def _end_step(self, step: int) -> None:
        if self._profile is None or threading.current_thread() is not self._thread or self._left <= 0:
            return
        self._left -= 1
        if self._left == 0:
            self._call(partial(self._profile.toggle_collection_dynamic, False, self._activities))
            _warn(f"{step + 1} steps are recorded; later ones are left out, since memory holds their events")
        elif self.options["steps"]:
            self._call(self._profile.step)

    def _call(self, change: Callable[[], object]) -> None:
        """Whatever the profiler does, training goes on."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*Profiler (won't|clears)", UserWarning)  # no warm-up
            try:
                change()
            except Exception as error:
                self._error = f"torch.profiler failed ({error})"
        if self._error:
            _warn(f"{self._error}; training goes on")
            self._error = ""

    def _write(self, part: profile) -> None:
        averages = part.key_averages(group_by_input_shape=self.options["shapes"])
        if not any(not event.key.startswith("ProfilerStep") for event in averages):
            return
        stem = folder.stem()
        try:
            files.create(self._folder / f"{stem}.pt.trace.json", lambda path: part.export_chrome_trace(str(path)))
            if self.options["operators"]:
                table = averages.table(sort_by="self_cpu_time_total", row_limit=ROWS)
                files.create(self._folder / f"{stem}.operators.txt", lambda path: path.write_text(table, encoding="utf-8"))
            if limit := self.options["storage_limit"]:
                folder.keep_within(self._folder, limit * folder.MEGABYTE, stem)
        except OSError as error:
            self._error = f"the profile cannot be written to {self._folder} ({error})"


def _warn(what: str) -> None:
    warn("profiling_mode", what, f"profiling_mode: {what}")


_recording: _Recording | None = None


def read() -> dict[str, Any] | None:
    return None if _recording is None else dict(_recording.options)


def write(options: Options | None) -> None:
    """Record with *options* from now on; the profile before is written first."""
    global _recording
    before, _recording = _recording, None
    if before is not None:
        before.end()
    if options is not None:
        _recording = _Recording(options)
        _recording.begin()


atexit.register(write, None)  # of set_context, which nobody leaves

"""Runs torch.profiler while ``profiling_mode`` is on, and writes a trace and a table of operators at the end.

One recording lasts as long as the scope. torch.profiler must not stop or restart inside a range that is open, and an optimizer's
step is one: PyTorch 2.13 then writes to memory that it has freed.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from msctx.notices import warn
from msctx.observers import slots_and_files as files
from msctx.observers import steps
from msctx.observers.module_paths import ModuleRanges
from msctx.observers.slots_and_files import Slot

MOST_STEPS = 100
"""Memory holds the events of so many steps; with Python's stacks, which are most of a trace, of a fifth. Later ones are left out."""
Options = Mapping[str, Any]
_OURS = re.compile(r"msctx_.+\.[0-9]{19}\..+")
"""The names of its files."""


class _Recording:
    """From a write of the switch to the next; the profile before is written first."""

    def __init__(self, settings: Options) -> None:
        self.settings = settings
        self._folder = Path(settings["output"]).absolute()  # the program may change its directory
        self._process, self._thread = os.getpid(), threading.current_thread()
        self._modules = None if settings["modules"] is None else ModuleRanges(classes=settings["modules"])
        self._counting = steps.counting(self._end_step)
        self._activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
        self._left = MOST_STEPS // 5 if settings["stacks"] else MOST_STEPS
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
        with suppress(ImportError):
            # PyTorch 2.13 imports it in a recording, and may keep the name of its code as bytes of freed memory.
            import_module("torch.profiler._cupti_monitor")
        started = profile(
            activities=self._activities,
            schedule=schedule(wait=0, warmup=0, active=sys.maxsize) if self.settings["steps"] else None,
            on_trace_ready=self._write,
            record_shapes=self.settings["shapes"],
            with_stack=self.settings["stacks"],
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
        elif self.settings["steps"]:
            self._call(self._profile.step)

    def _call(self, change: Callable[[], object]) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*Profiler (won't|clears)", UserWarning)  # no warm-up
            files.guarded("profiling_mode", self._folder, change)

    def _write(self, part: profile) -> None:
        averages = part.key_averages(group_by_input_shape=self.settings["shapes"])
        if not any(not event.key.startswith("ProfilerStep") for event in averages):
            return
        stem = f"msctx_{socket.gethostname()}_{os.getpid()}.{time.time_ns():019d}"  # as TensorBoard wants it
        files.write(self._folder / f"{stem}.pt.trace.json", lambda file: part.export_chrome_trace(file.name))
        if self.settings["operators"]:
            files.write(self._folder / f"{stem}.operators.txt", averages.table(sort_by="self_cpu_time_total", row_limit=100))
        if limit := self.settings["storage_limit"]:
            ours = (path for path in self._folder.iterdir() if _OURS.fullmatch(path.name))
            files.keep_within(ours, limit << 20, limit << 20, lambda path, _: path.name.startswith(stem))


def _warn(what: str) -> None:
    warn(f"profiling_mode: {what}")


SLOT = Slot(_Recording)

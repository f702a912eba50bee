"""Runs torch.profiler while ``profiling_mode`` asks for it, and writes what it found every few steps.

A part is what is recorded between two writes. It ends where no range of the program is open, see :mod:`msctx.observers.ranges`.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import _C
from torch.profiler import ProfilerActivity, profile, record_function

from msctx.errors import ScopeError, did_you_mean
from msctx.notices import warn
from msctx.observers import files, folder, ranges, step_table, steps
from msctx.observers.module_ranges import ModuleRanges
from msctx.observers.trace import MARK, Trace

STEPS_PER_PART = 10
"""Memory holds the events of so many steps; with Python's stacks, which are most of a trace, of a fifth."""
LONGEST = 10
"""A part that cannot end where it should, since ranges are open, ends after so many times its steps."""
Options = Mapping[str, Any]


class _NothingRan(Exception):
    """There is nothing to write."""


class _Recording:
    """From a write of the switch to the next."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._folder = Path(options["output"]).absolute()  # the program may change its directory
        self._thread, self._number = threading.current_thread(), threading.get_native_id()
        self._profile: profile | None = None
        self._first = self._recorded = self._not_before = 0
        self._is_over = self._is_busy = self._was_tried = False
        self._points = {key: options[key] for key in ("fp_point", "bp_point") if options[key]}
        """Those that no part has had so far."""
        self._names: set[str] = set()
        """Of the operators and ranges of the last part."""
        self._counting = steps.counting(self._end_step)
        self._modules = None if options["modules"] is None else ModuleRanges(classes=options["modules"])

    def begin(self) -> None:
        self._counting.__enter__()
        ranges.listen(self)
        if self._modules is not None:
            self._modules.begin()
        self.all_closed()

    def end(self) -> None:
        self._is_over = True
        if self._modules is not None:
            self._modules.end()
        self._counting.__exit__(None, None, None)
        if threading.current_thread() is self._thread:
            self._write()
        elif self._profile is not None:
            _warn(
                "the context was left in another thread than it was entered, which torch.profiler does not allow; nothing is written"
            )
        ranges.forget(self)
        if not self._was_tried:
            _warn("nothing was recorded: ranges of record_function that began under another profile were open throughout")
        for key, point in self._points.items() if self._names else ():
            text = f"profiling_options: no operator or range is called {point!r} ({key}){did_you_mean(point, self._names)}"
            warn("profiling_options", text, text)

    def abandon(self) -> None:
        """In a child that was forked: its parent writes."""
        if self._profile is not None and _C._autograd._profiler_enabled():
            _C._autograd._disable_profiler()
        self._profile, self._is_over = None, True

    @property
    def _is_full(self) -> bool:
        return self._recorded >= (STEPS_PER_PART // 5 if self.options["stacks"] else STEPS_PER_PART)

    def _end_step(self, step: int) -> None:
        if self._is_over or threading.current_thread() is not self._thread:
            return
        if self._profile is not None:
            self._recorded += 1
            self._is_busy = True
            try:
                with record_function(f"{MARK}{step}"):
                    pass
            finally:
                self._is_busy = False
        if self._recorded >= LONGEST * STEPS_PER_PART:
            _warn(
                "recording pauses until the ranges of record_function that are open have ended: keep them shorter than a step"
            )
            self._write()
        self.all_closed()

    def another_begins(self) -> None:
        """Gives way: torch would end what is recorded, and lose it."""
        if self._is_busy or self._profile is None or threading.current_thread() is not self._thread:
            return
        if ranges.are_open():
            raise ScopeError(
                "a profiler of torch cannot begin inside a range of record_function that profiling_mode records: torch would crash "
                "when the range ends. Begin it outside the range, or inside msctx.context(profiling_mode=False) around both."
            )
        _warn("another profiler of torch begins, and torch runs one at a time: recording continues once it has ended")
        self._write()

    def all_closed(self) -> None:
        """End a part that is full, and begin the next, where that can be."""
        if self._is_over or self._is_busy or threading.current_thread() is not self._thread:
            return
        if ranges.are_open() or _C._current_graph_task_id() != -1:  # in a backward pass
            return
        self._is_busy = True
        try:
            if self._profile is not None and self._is_full:
                self._write()
            if self._profile is None:
                self._begin_part()
        finally:
            self._is_busy = False

    def _begin_part(self) -> None:
        if steps.current() < self._not_before:
            return
        is_first, self._was_tried = not self._was_tried, True
        if _C._autograd._profiler_enabled():
            if is_first:
                _warn("another profiler of torch runs, and torch runs one at a time: recording begins once it has ended")
            return
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
        self._first, self._recorded = steps.current(), 0
        part = profile(activities=activities, record_shapes=self.options["shapes"], with_stack=self.options["stacks"])
        try:
            part.start()
        except Exception as error:
            _warn(f"torch.profiler does not start: {error}")
        else:
            self._profile = part

    def _write(self) -> None:
        part, full, self._profile, self._recorded = self._profile, self._is_full, None, 0
        self._not_before = steps.current() + 1  # ranges of compiled code may be open, which nobody reports
        if part is None:
            return
        if not _C._autograd._profiler_enabled():
            _warn(f"another profiler of torch ended this one; steps from {self._first} on are lost")
            return
        try:
            part.stop()
            self._write_files(part, full)
        except _NothingRan:
            pass
        except Exception as error:  # whatever a profile does, training goes on
            _warn(f"the profile cannot be written to {self._folder}, and training goes on without it", error)
        finally:
            part.profiler = None  # what torch holds of it, files too, goes now: a profile refers to itself

    def _write_files(self, part: profile, full: bool) -> None:
        stem, read = folder.stem(), []

        def fill(path: Path) -> None:
            part.export_chrome_trace(str(path))
            with path.open(encoding="utf-8") as file:
                try:
                    content = json.load(file)
                except ValueError:
                    raise OSError("torch has not written all of it; is the disk full?") from None
            content.pop("traceName", None)  # the name of the file before it was whole
            read.append(Trace(content, self.options, self._number, self._first, full=full))
            if not read[0].steps:
                raise _NothingRan
            with path.open("w", encoding="utf-8") as file:
                json.dump(content, file, separators=(",", ":"))

        files.create(self._folder / f"{stem}.pt.trace.json", fill)
        (trace,) = read
        self._points = {key: point for key, point in self._points.items() if point in trace.unmatched}
        self._names = trace.names
        if not trace.was_cut:
            self._not_before = 0
        notes = [f"No operator or range is called {name} (fp_point, bp_point)." for name in trace.unmatched]
        tables = {
            "steps.csv": lambda path: step_table.write_csv(path, step_table.STEPS, step_table.steps(trace.steps)),
            "operators.csv": lambda path: step_table.write_csv(path, step_table.OPERATORS, step_table.operators(trace.steps)),
            "steps.txt": lambda path: step_table.write_text(path, trace.steps, notes),
        }
        for name, fill_table in tables.items():
            files.create(self._folder / f"{stem}.{name}", fill_table)
        if limit := self.options["storage_limit"]:
            folder.keep_within(self._folder, limit * folder.MEGABYTE, stem)


def _warn(what: str, error: Exception | None = None) -> None:
    warn("profiling_mode", what, f"profiling_mode: {what}" + f" ({error})" * bool(error))


_recording: _Recording | None = None


def read() -> dict[str, Any] | None:
    return None if _recording is None else dict(_recording.options)


def write(options: Options | None) -> None:
    """Record with *options* from now on; what ran before is written first."""
    global _recording
    before, _recording = _recording, None
    if before is not None:
        before.end()
    if options is not None:
        _recording = _Recording(options)
        _recording.begin()


def _in_child() -> None:
    if _recording is not None:
        _recording.abandon()


atexit.register(write, None)  # of set_context, which nobody leaves
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)

"""torch.profiler, as a scope wants it: a process has one, and it records the thread that starts it."""

from __future__ import annotations

from msctx.observers import profiling
from msctx.switches.base import Switch

SWITCHES = (Switch(name="torch.profiler", read=profiling.read, write=profiling.write),)

"""torch.profiler, as a scope wants it: a process has one, and it records the thread that starts it."""

from __future__ import annotations

from msctx.switches.base import Switch, reading, writing

_PROFILING = "msctx.observers.profiling"
SWITCHES = (Switch(name="torch.profiler", read=reading(f"{_PROFILING}:read"), write=writing(f"{_PROFILING}:write")),)

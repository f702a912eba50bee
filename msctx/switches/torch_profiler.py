"""torch.profiler, as a scope wants it: a process has one, and it records the thread that starts it."""

from __future__ import annotations

from msctx.switches.base import Switch, reading, writing

_SLOT = "msctx.observers.profiling:SLOT"
SWITCHES = (Switch(name="torch.profiler", read=reading(f"{_SLOT}.read"), write=writing(f"{_SLOT}.write")),)

"""``export_compile_stat``: how often each fusion pass matched, in CANN's ``fusion_result.json``."""

from __future__ import annotations

import atexit
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msctx.imports import when_imported
from msctx.observers import files

OPTION = "export_compile_stat"
AT_END, AT_ONCE = 1, 2

_NO_PASS = (
    *("extern_calls", "flop_count", "pattern_matcher_count", "rescheduled_mem"),
    *("fxgraph_", "async_compile", "select_algorithm", "cudagraph", "generated_module_", "benchmarking", "triton_", "overlap_"),
)
"""How the names begin of what inductor counts beside its passes."""


class _Seen:
    """What inductor has counted until now."""

    def __init__(self) -> None:
        counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
        metrics = sys.modules.get("torch._inductor.metrics")
        self.passes = Counter(counters.get("inductor", {}))
        self.patterns = Counter(counters.get("inductor_pattern_matcher_per_pattern", {}))
        self.scheduler = Counter(
            nodes=getattr(metrics, "ir_nodes_pre_fusion", 0), kernels=getattr(metrics, "generated_kernel_count", 0)
        )

    def since(self, before: _Seen) -> dict[str, Any]:
        passes, patterns = _more(self.passes, before.passes), _more(self.patterns, before.patterns)
        scheduler = _more(self.scheduler, before.scheduler)
        matched = passes["pattern_matcher_count"] - patterns.total()  # torch keeps only their sum with code that it caches
        named = {n: c for n, c in passes.items() if not n.startswith(_NO_PASS) and not n.endswith("_nodes")}
        graph = {**named, **patterns, "pattern_matcher": matched}
        fused = scheduler["nodes"] - scheduler["kernels"] - passes["extern_calls"]
        found = {
            "graph_fusion": {n: _times(c) for n, c in sorted(graph.items()) if c > 0},
            "ub_fusion": {"SchedulerFusion": _times(fused) | {"repository_hit_times": "0"}} if fused > 0 else {},
        }
        return {kind: entries for kind, entries in found.items() if entries}


def _more(now: Counter[str], before: Counter[str]) -> Counter[str]:
    """What has been added; a program may have set a count back."""
    return Counter({n: c - before[n] if c >= before[n] else c for n, c in now.items()})


def _times(count: int) -> dict[str, str]:
    """torch counts a match where it takes effect."""
    return {"effect_times": str(count), "match_times": str(count)}


class Recording:
    """The graphs that are compiled in a scope."""

    def __init__(self, mode: int) -> None:
        self.mode = mode
        self._graphs: dict[str, Mapping[str, Any]] = {}
        self._path: Path | None = None
        self._process = os.getpid()
        self._give_up: Callable[[], None] = lambda: None
        self._seen = _Seen()
        self._error = getattr(sys, "last_value", None)

    def begin(self) -> None:
        """For the first time, or again after a scope inside."""
        self._seen = _Seen()
        self._give_up = when_imported("torch._dynamo.callback", self._listen)
        atexit.register(self.end)

    def pause(self) -> None:
        self._count()
        self._give_up()
        if (module := sys.modules.get("torch._dynamo.callback")) is not None:
            handler = module.callback_handler
            if self._compiled in handler.end_callbacks:
                handler.remove_end_callback(self._compiled)

    def end(self) -> None:
        self.pause()
        atexit.unregister(self.end)
        failed = sys.exc_info()[1] is not None or getattr(sys, "last_value", None) is not self._error
        if self.mode == AT_END and not failed:
            self._write()

    def _listen(self) -> None:
        sys.modules["torch._dynamo.callback"].callback_handler.register_end_callback(self._compiled)

    def _compiled(self, _: Any) -> None:
        self._count()
        if self.mode == AT_ONCE:
            self._write()

    def _count(self) -> None:
        now = _Seen()
        if found := now.since(self._seen):
            self._graphs[f"session_and_graph_id_0_{len(self._graphs)}"] = found
        self._seen = now

    def _write(self) -> None:
        if self._graphs and self._process == os.getpid():  # a forked child has its parent's
            place = self._place()
            files.guarded(OPTION, place.parent, lambda: self._write_to(place))

    def _place(self) -> Path:
        if self._path is not None:
            return self._path
        work = files.work_path()
        return (Path.cwd() if work is None else work / "FE" / str(os.getpid())) / "fusion_result.json"

    def _write_to(self, place: Path) -> None:
        if self._path is None:
            place.parent.mkdir(parents=True, exist_ok=True)
            self._path = files.reserve(place)
        files.write_json(self._path, self._graphs)


_current: Recording | None = None


def read() -> int:
    return 0 if _current is None else _current.mode


def write(mode: int) -> None:
    global _current
    if _current is not None:
        _current.pause()
    _current = Recording(mode) if mode else None
    if _current is not None:
        _current.begin()


def save() -> Recording | None:
    return _current


def load(recording: Recording | None) -> None:
    global _current
    if _current is recording:
        return
    if _current is not None:
        _current.end()
    _current = recording
    if recording is not None:
        recording.begin()

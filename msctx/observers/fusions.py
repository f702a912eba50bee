"""``export_compile_stat``: how often each fusion pass of inductor took effect, in CANN's ``fusion_result.json``."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections import Counter
from pathlib import Path

from msctx.observers import files
from msctx.observers.slots import Slot
from msctx.observers.structured_trace import Handler

OPTION = "export_compile_stat"
AT_END, AT_ONCE = 1, 2
_NO_PASS = (
    *("extern_calls", "flop_count", "pattern_matcher_count", "rescheduled_mem"),
    *("fxgraph_", "async_compile", "select_algorithm", "cudagraph", "generated_module_", "benchmarking", "triton_", "overlap_"),
)
"""The names of inductor's other counters begin so."""


def _counted() -> Counter[str]:
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    passes, patterns = counters.get("inductor", {}), counters.get("inductor_pattern_matcher_per_pattern", {})
    found = Counter({n: c for n, c in passes.items() if not n.startswith(_NO_PASS) and not n.endswith("_nodes")}) + Counter(
        patterns
    )
    found["pattern_matcher"] = passes.get("pattern_matcher_count", 0) - sum(patterns.values())  # a cache has only their sum
    return found


class Recording(Handler):
    """Counts what is compiled while a context is open."""

    def __init__(self, mode: int) -> None:
        super().__init__(mode)
        self._graphs: dict[str, dict[str, dict[str, dict[str, str]]]] = {}
        self._path: Path | None = None
        self._process, self._error = os.getpid(), getattr(sys, "last_value", None)
        self._seen = _counted()

    def begin(self) -> None:
        """For the first time, or again after an inner context."""
        self._seen = _counted()
        super().begin()
        atexit.register(self.end)

    def end(self) -> None:
        self._count()
        super().end()
        atexit.unregister(self.end)
        if self.settings == AT_END and sys.exc_info()[1] is None and getattr(sys, "last_value", None) is self._error:
            self._write()

    def emit(self, record: logging.LogRecord) -> None:
        if "compilation_metrics" in getattr(record, "metadata", {}):
            self._count()
            if self.settings == AT_ONCE:
                self._write()

    def _count(self) -> None:
        before, self._seen = self._seen, _counted()
        more = {name: count - before[name] if count >= before[name] else count for name, count in sorted(self._seen.items())}
        if found := {name: {"effect_times": str(c), "match_times": str(c)} for name, c in more.items() if c > 0}:
            self._graphs[f"session_and_graph_id_0_{len(self._graphs)}"] = {"graph_fusion": found}

    def _write(self) -> None:
        if self._graphs and self._process == os.getpid():  # a forked child has its parent's
            work = files.work_path()
            folder = Path.cwd() if work is None else work / "FE" / str(os.getpid())
            files.guarded(OPTION, folder, lambda: self._write_to(folder))

    def _write_to(self, folder: Path) -> None:
        if self._path is None:
            folder.mkdir(parents=True, exist_ok=True)
            self._path = files.reserve(folder / "fusion_result.json")
        files.write_json(self._path, self._graphs)


SLOT = Slot(Recording)

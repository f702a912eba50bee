"""``op_timeout``: ends the process where one operator runs too long, with the stacks of all threads.

The time of an operator is counted in the watchdog's own ticks, each of which counts as at most two: while the whole process stands
still (a machine that was suspended, SIGSTOP), the watchdog does so, too. Ticks do not count while Python runs inside an operator: a
hook that packs what autograd keeps, or a mode.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from msctx.native import core
from msctx.observers import collector
from msctx.observers.collector import Reader
from msctx.observers.recorder import RecorderReader
from msctx.options.policies import Watchdog

EXIT_CODE = 124
"""As of timeout(1)."""


class WatchdogReader(Reader):
    def __init__(self, settings: Watchdog) -> None:
        self.settings = settings

    @property
    def requested(self) -> Mapping[str, int]:
        return {"running": 1}

    def begin(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(self._stop, core.load()), name="msctx watchdog", daemon=True)
        self._thread.start()

    def pause(self) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self, stop: threading.Event, library: core.Core) -> None:
        tick = min(1.0, self.settings.seconds / 10)
        running: dict[tuple[int, int], float] = {}
        before = time.monotonic()
        while not stop.wait(tick):
            now = time.monotonic()
            passed, before = min(now - before, 2 * tick), now
            found = {(row["thread"], row["began"]): row for row in library.c.msctx_running()}
            frames = sys._current_frames()
            is_own = {key: row["caller"] in (0, id(frames.get(row["ident"]))) for key, row in found.items()}
            del frames
            running = {key: running.get(key, -passed) + passed if is_own[key] else running.get(key, 0.0) for key in found}
            for key, seconds in running.items():
                if seconds > self.settings.seconds and not stop.is_set():
                    self._end(found[key])

    def _end(self, row: dict[str, Any]) -> None:
        where = f" in module {row['module']}" if row["module"] else ""
        text = f"op_timeout: {row['operator']}{where} has run for more than {self.settings.seconds} s in thread {row['thread']}"
        with contextlib.suppress(OSError, ValueError):
            print(f"{text}; the process ends with exit code {EXIT_CODE}. All threads:", file=sys.stderr, flush=True)
            faulthandler.dump_traceback(sys.__stderr__ or 2, all_threads=True)
            sys.stdout.flush()
        if isinstance(found := collector.reader("observers.recorder"), RecorderReader):
            found.fail(TimeoutError(text))
        os._exit(EXIT_CODE)

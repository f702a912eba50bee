"""What ran last, written when a program fails (``env_config_path.rdr``), and what runs too long (``op_timeout``)."""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from msctx.errors import named
from msctx.native import core, distributed, memory
from msctx.observers import collector, files
from msctx.observers.collector import Reader
from msctx.observers.files import Slot
from msctx.options.policies import Recorder, Watchdog

_numbers = itertools.count(1)  # of the files of this process


class RecorderReader(Reader):
    """Files are named as those of MindSpore's Running Data Recorder. On a fatal signal ``faulthandler`` prints all stacks."""

    def __init__(self, graphs: Callable[[], list[dict[str, Any]]], settings: Recorder) -> None:
        self.settings = settings
        self._graphs = graphs
        self.option = "env_config_path.rdr.enable"
        self.output = Path(settings.path).absolute() / f"rank_{distributed.rank_or_0()}" / "rdr"
        self._written: BaseException | None = None

    @property
    def requested(self) -> Mapping[str, int]:
        return {"recent": 1}

    def start(self) -> None:
        self._around = sys.exc_info()[1]  # that is handled around the scope: it is none of its own
        self._shown = sys.excepthook, threading.excepthook
        sys.excepthook, threading.excepthook = self._hooks = self._show, self._show_of_thread
        self._has_enabled = not faulthandler.is_enabled()
        if self._has_enabled:
            faulthandler.enable(sys.__stderr__ or 2)

    def _show(self, *args: Any) -> None:
        self.fail(args[1])
        self._shown[0](*args)

    def _show_of_thread(self, args: threading.ExceptHookArgs) -> None:
        self.fail(args.exc_value)
        self._shown[1](args)

    def pause(self) -> None:
        if sys.excepthook is self._hooks[0]:
            sys.excepthook = self._shown[0]
        if threading.excepthook is self._hooks[1]:
            threading.excepthook = self._shown[1]
        if self._has_enabled:
            faulthandler.disable()
        error = sys.exc_info()[1]
        if error not in (None, self._around) and not (isinstance(error, SystemExit) and not error.code):
            self.fail(error)
        elif self.settings.mode == 2 and collector.recent():
            self._write("ended")
        self.process = 0  # a hook that somebody keeps only calls the one before it

    def fail(self, error: BaseException | None) -> None:
        if error is not None and error is not self._written:
            self._written = error
            self._write(named(error))

    def _write(self, reason: str) -> None:
        """Under ``{module}.{name}.{suffix}.{timestamp}``, as RDR's; a forked process has its parent's operators and hooks only."""
        if self.process != os.getpid():
            return
        rows = collector.recent()
        stem = f"KERNEL.graph_exec_order.{os.getpid()}_{next(_numbers)}.{time.strftime('%Y%m%d%H%M%S')}"
        text = ["================== execution order ==================", f"execution_order size: {len(rows)}", reason]
        for number, row in enumerate(rows):
            state = {-1: "running", -2: "raised"}.get(row["took"], f"{row['took']} us")
            of_call = (row["operator"], row["module"] or "-", row["direction"], row["shapes"] or "-", row["algorithm"] or "-")
            text += [f"{number}:", *(f"\t{field}" for field in (*of_call, state, f"thread {row['thread']}"))]
        found: dict[str, Any] = {"reason": reason, "operators": rows, "memory": _memory(), "graphs": self._graphs()}
        found["collectives"] = distributed.flight_record()
        self.guarded(lambda: files.write(self.output / f"{stem}.txt", "\n".join(text) + "\n"))
        self.guarded(lambda: files.write_json(self.output / f"{stem}.json", found))


RECORDER = Slot(RecorderReader)


def _memory() -> dict[str, Any]:
    """Bytes of the process, of counted host memory, and of the accelerator that the program uses."""
    import resource  # of Unix

    found = memory.statistics() | {"peak_resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    if memory.accelerator():
        of_torch = torch.accelerator
        found["device"] = {"allocated": of_torch.memory_allocated(), "peak": of_torch.max_memory_allocated()}
    return found


EXIT_CODE = 124
"""As of timeout(1)."""


class WatchdogReader(Reader):
    """Ends the process where one operator runs too long, with the stacks of all threads.

    The time of an operator is counted in the watchdog's own ticks, each of which counts as at most two: while the whole process
    stands still (a machine that was suspended, SIGSTOP), the watchdog does so, too. Ticks do not count while Python runs inside an
    operator: a hook that packs what autograd keeps, or a mode.
    """

    def __init__(self, settings: Watchdog) -> None:
        self.settings = settings

    @property
    def requested(self) -> Mapping[str, int]:
        return {"running": 1}

    def start(self) -> None:
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
        if RECORDER.on is not None:
            RECORDER.on.fail(TimeoutError(text))
        os._exit(EXIT_CODE)


WATCHDOG = Slot(WatchdogReader)

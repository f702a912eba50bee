"""``env_config_path.rdr``: the last operators, written when the program fails or ends.

A program fails when an exception leaves the with-block, when one is raised that nobody catches, or by a fatal signal. The files are
named as those of MindSpore's Running Data Recorder.
"""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from msctx.errors import named
from msctx.native import core, distributed, memory
from msctx.observers import collector, files
from msctx.observers.collector import Reader
from msctx.observers.uncaught import Hook
from msctx.options.observation import Recorder

OPTION = "env_config_path.rdr.enable"
_numbers = itertools.count(1)
"""Of the files of this process."""


class RecorderReader(Reader):
    def __init__(self, graphs: Callable[[], list[dict[str, Any]]], settings: Recorder) -> None:
        """*graphs*: those that the process has compiled."""
        self.settings = settings
        self._graphs = graphs
        self._folder = Path(settings.path).absolute() / f"rank_{files.rank()}" / "rdr"
        self._hooks: list[Hook] = []
        self._written: BaseException | None = None
        self._around: BaseException | None = None

    @property
    def asked(self) -> Mapping[str, int]:
        return {"recent": 1}

    def begin(self) -> None:
        self._around = sys.exc_info()[1]  # that is handled around the scope: it is none of its own
        files.guarded(OPTION, self._folder, lambda: self._folder.mkdir(parents=True, exist_ok=True))
        core.load().c.msctx_record_fatal(str(self._stem("fatal")))
        self._hook(sys, lambda kind, error, trace: error)
        self._hook(threading, lambda args: args.exc_value)
        atexit.register(self._end)

    def _hook(self, owner: Any, error_of: Callable[..., BaseException | None]) -> None:
        """Of exceptions that nobody catches: the process's context is never left."""

        def shown(args: tuple[Any, ...]) -> tuple[Any, ...]:
            self.fail(error_of(*args))
            return args

        self._hooks.append(Hook(owner, "excepthook", shown))

    def pause(self) -> None:
        error = sys.exc_info()[1]
        is_normal = error is self._around or (isinstance(error, SystemExit) and not error.code)
        if not is_normal:
            self.fail(error)
        else:
            self._end()
        atexit.unregister(self._end)
        core.load().c.msctx_record_fatal("")
        with suppress(OSError):  # there is nothing in it: the handler of a signal cannot make it
            self._folder.rmdir()
            self._folder.parent.rmdir()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    @property
    def _is_here(self) -> bool:
        """A forked process has its parent's operators alone, and its hooks."""
        return self.process == os.getpid()

    def _end(self) -> None:
        if self._is_here and self.settings.mode == 2 and collector.recent():
            self._write("ended")

    def fail(self, error: BaseException | None) -> None:
        if self._is_here and (error is None or error is not self._written):
            self._written = error
            self._write("failed" if error is None else named(error))

    def _stem(self, suffix: str) -> Path:
        """``{module}.{name}.{suffix}.{timestamp}``, as RDR's."""
        return self._folder / f"KERNEL.graph_exec_order.{os.getpid()}_{suffix}.{time.strftime('%Y%m%d%H%M%S')}"

    def _write(self, reason: str) -> None:
        rows = collector.recent()
        stem = self._stem(str(next(_numbers)))
        text = ["================== execution order ==================", f"execution_order size: {len(rows)}", reason]
        for number, row in enumerate(rows):
            state = {-1: "running", -2: "raised"}.get(row["took"], f"{row['took']} us")
            named = (row["operator"], row["module"] or "-", row["direction"], row["shapes"] or "-", row["algorithm"] or "-")
            fields = (*named, state, f"thread {row['thread']}")
            text += [f"{number}:", *(f"\t{field}" for field in fields)]
        found = {"reason": reason, "operators": rows, "collectives": distributed.flight_record(), "memory": _memory()}
        found["graphs"] = self._graphs()

        def write() -> None:
            files.write(stem.with_name(f"{stem.name}.txt"), "\n".join(text) + "\n")
            files.write_json(stem.with_name(f"{stem.name}.json"), found)

        files.guarded(OPTION, self._folder, write)


def _memory() -> dict[str, Any]:
    """Bytes of the process, of the pool of host memory, and of the accelerator that the program uses."""
    import resource  # of Unix

    import torch

    found = memory.statistics() | {"peak_resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    if device := memory.accelerator():
        torch_module = torch.get_device_module(device)
        found["device"] = {"allocated": torch_module.memory_allocated(), "peak": torch_module.max_memory_allocated()}
    return found


def write_all(reason: str) -> None:
    """The process is about to end."""
    if isinstance(found := collector.reader("observers.recorder"), RecorderReader):
        found.fail(TimeoutError(reason))

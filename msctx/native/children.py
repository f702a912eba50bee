"""Programs that end with the block that starts them. Each is a process group, which ends as one."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

GRACE = 10.0
"""Seconds that a program has after Ctrl-C or SIGTERM to end by itself."""


class Children:
    """The programs that are started in a with-block; none is running when it has been left."""

    def __init__(self) -> None:
        self._guard, self._running = threading.Lock(), set[subprocess.Popen[str]]()
        self._ended = False

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *_: Any) -> None:
        self.end()

    def run(self, command: Sequence[str], cwd: Path | None = None, **how: Any) -> subprocess.CompletedProcess[str]:
        """Run a program to its end, from any thread; Ctrl-C is passed on to it, other exceptions as SIGTERM. *how*: as for Popen."""
        with self._guard:
            if self._ended:
                return subprocess.CompletedProcess(command, -signal.SIGKILL, "", "")
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                cwd=cwd,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,
                **{"stderr": subprocess.PIPE, **how},
            )
            self._running.add(process)
        with process:
            try:
                output = process.communicate()
            except BaseException as raised:
                _signal(process, signal.SIGINT if isinstance(raised, KeyboardInterrupt) else signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):
                    process.communicate(timeout=GRACE)
                raise
            finally:
                with self._guard:
                    self._running.discard(process)
                    _signal(process, signal.SIGKILL)
        return subprocess.CompletedProcess(command, process.returncode, *output)

    def end(self) -> None:
        """End what is running, and start nothing any more."""
        with self._guard:
            self._ended = True
            for process in self._running:
                _signal(process, signal.SIGKILL)


def _signal(process: subprocess.Popen[str], number: int) -> None:
    """To it and all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)

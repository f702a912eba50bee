"""Programs that end with us, however we end.

No handler of a signal is changed, and any thread may start them: the kernel closes our end of a pipe when this process ends, SIGKILL
included, and a shell beside each program waits for that. A program is a process group, which ends as one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msctx import locks

_BESIDE = """
exec 3<&0
( ( read -r line; trap "" TERM; kill -TERM 0; "$1" -ISc "$2" "$0"; kill -KILL 0 ) <&3 >/dev/null 2>&1 & )
shift 2
exec "$@" 3<&- </dev/null
"""
"""The shell's watch outlives the program until run() ends its group; a process that was forked meanwhile keeps it waiting."""
_LAST = """
import os, shutil, sys, time
group = os.getpgrp()
os.setsid()
time.sleep(0.5)
os.killpg(group, 9)
shutil.rmtree(sys.argv[1], ignore_errors=True)
time.sleep(0.5)
shutil.rmtree(sys.argv[1], ignore_errors=True)
"""
"""Python that ends the group from outside it, for what a program writes until it has ended would bring its folder back."""
GRACE = 10.0
"""Seconds that a program has after Ctrl-C or SIGTERM to end by itself."""


class Children:
    """The programs that are started in a with-block; none is running when it has been left.

    *scratch* is the folder of what is in progress, removed if this process does not live to do it.
    """

    def __init__(self, scratch: Path | None = None) -> None:
        self._scratch = scratch
        self._guard, self._running = locks.plain(), set[subprocess.Popen[str]]()
        self._ended = False
        self._theirs, self._ours = os.pipe()

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *_: Any) -> None:
        self.end()
        os.close(self._theirs)
        os.close(self._ours)

    def run(
        self, command: Sequence[str], cwd: Path | None = None, scratch: Path | None = None, **how: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end, from any thread; Ctrl-C is passed on to it, other exceptions as SIGTERM. *how*: as for Popen."""
        with self._guard:
            if self._ended:
                return subprocess.CompletedProcess(command, -signal.SIGKILL, "", "")
            process = subprocess.Popen(
                ["/bin/sh", "-c", _BESIDE, str(scratch or self._scratch or ""), sys.executable, _LAST, *command],
                stdin=self._theirs,
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

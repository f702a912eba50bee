"""Programs that end with us, however we end.

No handler of a signal is changed, and it does not matter which thread starts them: the kernel closes our end of a pipe when this
process ends, SIGKILL included, and a shell beside each program waits for that. A program is a process group, which ends as one.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msctx import locks

_BESIDE = """
exec 3<&0
( ( read -r line; trap "" TERM; kill -TERM 0; rm -rf -- "$0"; kill -KILL 0 ) <&3 >/dev/null 2>&1 & )
exec "$@" 3<&- </dev/null
"""
"""The shell's watch outlives the program until run() ends its group; whoever keeps the pipe open (a process that was forked from
this one meanwhile) keeps it waiting.
"""


class Children:
    """The programs that are started in a with-block; none is running when it has been left.

    *scratch* is the folder of what is in progress: theirs for temporary files, and removed if this process does not live to do it.
    """

    def __init__(self, scratch: Path) -> None:
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

    def run(self, command: Sequence[str], cwd: Path, limit: float | None = None) -> tuple[int, str]:
        """Run a program to its end, from any thread; its exit code (below 0: the signal) and all that it said.

        Raises:
            subprocess.TimeoutExpired: after *limit* seconds.
        """
        with self._guard:
            if self._ended:
                return 0, ""
            process = self._start(command, cwd)
            self._running.add(process)
        with process:
            try:
                output, _ = process.communicate(timeout=limit)
            finally:
                with self._guard:
                    self._running.discard(process)
                    _kill(process)
        return process.returncode, output

    def end(self) -> None:
        """End what is running, and start nothing any more."""
        with self._guard:
            self._ended = True
            for process in self._running:
                _kill(process)

    def _start(self, command: Sequence[str], cwd: Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["/bin/sh", "-c", _BESIDE, str(self._scratch), *command],
            stdin=self._theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env={**os.environ, "LC_ALL": "C", "TMPDIR": str(self._scratch)},
            encoding="utf-8",
            errors="replace",
            umask=0o077,
            start_new_session=True,
        )


def _kill(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)

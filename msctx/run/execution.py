"""`msctx exec`: any command, whose Python processes compute under options from their first import of torch on."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msctx.errors import Diagnostic, FileError, StrictError, nearest
from msctx.notices import warn
from msctx.options import Layer, layers
from msctx.options.layers import presets

KEYS = ("SIGINT", "SIGQUIT")
"""A terminal sends those of its keys to the command itself."""
SIGNALS = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", *KEYS)


def execute(command: Sequence[str], layer: Layer, *, strict: bool = False) -> int:
    """Run *command* with *layer* in MSCTX_PLAN; returns its exit code, as shells count them where a signal ended it.

    Raises:
        FileError: the command cannot be started.
        StrictError: it has ended, and under *strict* no process of it has entered the options.
    """
    with tempfile.TemporaryDirectory(prefix="msctx-exec-") as folder:
        (seen := Path(folder) / "seen").touch()
        environment = os.environ | {layers.PLAN: layers.pack(layer, seen=str(seen))}
        try:
            process = subprocess.Popen(command, env=environment)
        except OSError as error:
            hint = nearest(command[0], presets())
            raise FileError([Diagnostic("", f"cannot be started: {error.strerror}", command[0], suggestion=hint)]) from None
        code = _wait(process)
        if seen.stat().st_size:
            layers.note_process(os.environ, str(os.getpid()))  # for a `msctx exec` around this one
        elif not _is_left(folder):
            text = _UNSEEN.format(" ".join(command))
            if strict:
                raise StrictError(f"strict=True, and {text}")
            warn(text)
    return code if code >= 0 else 128 - code


def _is_left(folder: str) -> bool:
    """Whether the command has left a process that still runs, such as a daemon: it may enter the options later."""
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # another user's, or it has just ended
            if folder.encode() in environment.read_bytes():
                return True
    return False


_UNSEEN = (
    "the options did nothing: no process of `{}` on this machine entered them. That needs an import of torch, and an environment"
    " in which msctx is installed. A Python that runs with -S does not read them"
)


def _wait(process: subprocess.Popen[bytes]) -> int:
    def pass_on(number: int, frame: Any) -> None:
        if signal.Signals(number).name not in KEYS or not _has_terminal():
            process.send_signal(number)

    for name in SIGNALS:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), pass_on)
    return process.wait()


def _has_terminal() -> bool:
    """Whether the keys of a terminal reach this process, and with it the command."""
    try:
        with open("/dev/tty", "rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False

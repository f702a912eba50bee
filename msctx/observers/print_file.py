"""The file of ``print_file_path``: a name that nobody has, and records that go into it whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from msctx import notices
from msctx.observers import files

try:
    from fcntl import LOCK_EX, LOCK_UN, flock
except ImportError:  # a system without: appending alone keeps records apart there
    flock = None  # type: ignore[assignment]


class PrintFile:
    """A file that is made at once; the processes forked from this one write to it, too."""

    def __init__(self, asked: str) -> None:
        self.asked = asked
        """The path that the option names."""
        self.path = ""
        """The file that receives the records; ``""`` where none could be made."""
        try:
            self.path = str(files.reserve(Path(asked).expanduser().absolute()))
        except OSError as error:
            _warn(asked, f"cannot be made ({error.strerror}); what Print receives is lost")

    def append(self, record: bytes) -> None:
        """Write one record. Where the system refuses, the record is left out, and one warning reports it."""
        if not self.path:
            return
        try:
            _append(self.path, record)
        except OSError as error:
            _warn(self.path, f"cannot be written ({error.strerror}); some of what Print received is not in it")


def _warn(path: str, what: str) -> None:
    notices.tell("print_file_path", path, f"print_file_path: {path} {what}")


def _append(path: str, record: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND)  # anew for each record: a lock belongs to what one call opened
    try:
        if flock is not None:
            with suppress(OSError):  # some network file systems have no locks
                flock(file, LOCK_EX)
        end, rest = os.lseek(file, 0, os.SEEK_END), memoryview(record)
        try:
            while rest:
                rest = rest[os.write(file, rest) :]
        except BaseException:
            with suppress(OSError):
                os.ftruncate(file, end)
            raise
    finally:
        if flock is not None:
            with suppress(OSError):
                flock(file, LOCK_UN)  # a process that was forked meanwhile has the file open, too
        os.close(file)


current: PrintFile | None = None
"""Where printed values go; ``None``: to the screen."""


def read() -> str | None:
    return None if current is None else current.asked


def write(path: str | None) -> None:
    load(None if path is None else PrintFile(path))


def save() -> PrintFile | None:
    return current


def load(file: PrintFile | None) -> None:
    global current
    current = file

"""The file of ``print_file_path``: a name that nobody has, and whole records in it."""

from __future__ import annotations

import os
from pathlib import Path

from msctx import locks, notices
from msctx.observers import files

_lock = locks.reentrant()


class PrintFile:
    """A file that its first record makes."""

    def __init__(self, asked: str) -> None:
        self.asked = asked
        """The path that the option names."""
        self._wanted = Path(asked).expanduser().absolute()
        self._made: str | None = None
        if not os.access(self._wanted.parent, os.W_OK):  # report it now
            self.made()

    def made(self) -> str:
        """The file that receives the records; ``""``: none can be made."""
        with _lock:
            if self._made is None:
                try:
                    self._made = str(files.reserve(self._wanted))
                except OSError as error:
                    self._made = ""
                    _warn(self.asked, f"cannot be created ({error.strerror}); what Print receives is lost")
            return self._made

    def append(self, record: bytes) -> None:
        if path := self.made():
            try:
                files.append(path, lambda end: record)
            except OSError as error:
                _warn(path, f"cannot be written ({error.strerror}); some records are missing")


def _warn(path: str, what: str) -> None:
    notices.warn("print_file_path", path, f"print_file_path: {path} {what}")


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

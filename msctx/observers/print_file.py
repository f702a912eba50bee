"""The file of ``print_file_path``: a name that nobody has, and whole records in it."""

from __future__ import annotations

import os
from pathlib import Path

from msctx import locks, notices
from msctx.observers import files
from msctx.observers.slots import Slot

_lock = locks.reentrant()


class PrintFile:
    """A file that its first record makes."""

    def __init__(self, path: str) -> None:
        self.settings = path
        self._wanted = Path(path).expanduser().absolute()
        self._made: str | None = None
        if not os.access(self._wanted.parent, os.W_OK):  # report it now
            self.made()

    def begin(self) -> None:
        """The first record makes the file."""

    def end(self) -> None:
        """Each record is whole."""

    def made(self) -> str:
        """The file that receives the records; ``""``: none can be made."""
        with _lock:
            if self._made is None:
                try:
                    self._made = str(files.reserve(self._wanted))
                except OSError as error:
                    self._made = ""
                    _warn(self.settings, f"cannot be created ({error.strerror}); what Print receives is lost")
            return self._made

    def append(self, record: bytes) -> None:
        if path := self.made():
            try:
                files.append(path, lambda end: record)
            except OSError as error:
                _warn(path, f"cannot be written ({error.strerror}); some records are missing")


def _warn(path: str, what: str) -> None:
    notices.warn(f"print_file_path: {path} {what}")


SLOT = Slot(PrintFile)

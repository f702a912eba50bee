"""A folder that an observer writes into: the names of its files, and no more of them than is allowed."""

from __future__ import annotations

import os
import re
import socket
import time
from contextlib import suppress
from pathlib import Path

_OURS = re.compile(r"msctx_.+\.[0-9]{19}\..+")
MEGABYTE = 2**20


def stem() -> str:
    """How the names of files that belong together begin: ``msctx_<host>_<process>.<nanoseconds>``, as TensorBoard wants it."""
    return f"msctx_{socket.gethostname()}_{os.getpid()}.{time.time_ns():019d}"


def keep_within(folder: Path, limit: int, newest: str) -> None:
    """Remove the oldest files of observers until all of them have *limit* bytes; those that begin with *newest* stay."""
    found = []
    for path in folder.iterdir():
        with suppress(OSError):  # another process keeps within its limit, too
            if _OURS.fullmatch(path.name) and path.is_file() and not path.is_symlink():
                status = path.stat()
                found.append((status.st_mtime_ns, path.name, status.st_size))
    total = sum(size for *_, size in found)
    for _, name, size in sorted(found):
        if total <= limit:
            return
        if not name.startswith(newest):
            with suppress(OSError):
                (folder / name).unlink()
            total -= size

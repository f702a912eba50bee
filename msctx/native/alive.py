"""A file by which other processes of this machine see whether one is still there; it need not clean up after itself."""

from __future__ import annotations

import fcntl
from io import BufferedWriter
from pathlib import Path


def hold(path: Path) -> BufferedWriter:
    """Make a file that this process holds until it closes it or ends, in whatever way."""
    new = path.with_name(f".{path.name}")
    file = new.open("wb")
    fcntl.lockf(file, fcntl.LOCK_EX)  # not flock: workers that are forked must not have it
    new.replace(path)
    return file


def is_held(path: Path) -> bool:
    """Whether the process of such a file is there, or has not come yet. Not for the process that holds it: that would let go."""
    try:
        with path.open("rb") as file:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except OSError:
        return True

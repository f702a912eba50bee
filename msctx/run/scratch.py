"""A folder for as long as this process lives; those of processes that were killed go when the next one begins."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from msctx.native import alive

ALIVE = "alive"


@contextmanager
def folder(prefix: str) -> Iterator[Path]:
    _clear(prefix)
    with tempfile.TemporaryDirectory(prefix=prefix) as made, ExitStack() as held:
        with suppress(OSError):  # a file system without locks: the folder stays if this process is killed
            held.enter_context(alive.hold(Path(made, ALIVE)))
        yield Path(made)


def _clear(prefix: str) -> None:
    for found in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):
            status = found.lstat()
            is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
            if is_own and not alive.is_held(found / ALIVE):
                shutil.rmtree(found, ignore_errors=True)

"""What observers share: the slot that a switch turns on, and files."""

from __future__ import annotations

import atexit
import csv
import errno
import io
import json
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from msctx import notices
from msctx.errors import named
from msctx.native import cachedir


class Slot:
    """What a switch turns on: the one of a kind that is on; it has ``settings``, ``begin()`` and ``end()``."""

    def __init__(self, kind: Callable[..., Any]) -> None:
        self._kind = kind
        self.on: Any = None

    def read(self) -> Any:
        return None if self.on is None else self.on.settings

    def save(self) -> Any:
        return self.on

    def load(self, found: Any) -> None:
        if self.on is not found:
            before, self.on = self.on, None
            atexit.unregister(self.write)
            if before is not None:
                before.end()
            if found is not None:
                found.begin()
                atexit.register(self.write, None)  # of set_context, which nobody leaves
            self.on = found

    def write(self, *made_of: Any) -> None:
        """The settings come last; ``None``: off."""
        self.load(None if made_of[-1] is None else self._kind(*made_of))


class OfThread(threading.local):
    """Whether something is on in this thread."""

    def __init__(self, on: bool = False) -> None:
        self.on = on

    def is_on(self) -> bool:
        return self.on

    def turn(self, on: bool) -> None:
        self.on = on


def guarded(option: str, folder: Path | str, work: Callable[[], object], reported: set[str] | None = None) -> None:
    """Whatever *work* raises, the program goes on; this warns, unless the text is in *reported* already."""
    try:
        work()
    except Warning:  # as an error
        raise
    except Exception as error:
        text = f"{option} failed ({named(error)}); the program continues"
        if isinstance(error, OSError):
            text = f"{option}: cannot write to {folder} ({error.strerror or error}); those files are missing; the program continues"
        if reported is None or text not in reported:
            notices.warn(text)
        if reported is not None:
            reported.add(text)


def write(path: Path, data: str | Callable[[Any], object]) -> None:
    """A whole file or none, in the place of one of ours; *data* may be a function that fills an open file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cachedir.write(path, data.encode() if isinstance(data, str) else data, mode=0o666)  # as the umask has it


def reserve(wanted: Path, make: Callable[..., None] = Path.touch) -> Path:
    """An empty file or folder of this name, or of the name with the time in it: what is there already stays."""
    path, now = wanted, int(time.time())
    for more in count():
        try:
            make(path, exist_ok=False)
            return path
        except FileExistsError:
            path = Path(f"{wanted}.{now + more}")
    raise AssertionError


def keep_within(paths: Iterable[Path], limit: int, left: int, stays: Callable[[Path, float], bool]) -> None:
    """Where files have more than *limit* bytes, remove those that were idle for longest until *left* bytes remain.

    *stays*: of a file and the time of its last use, whether it may not be removed.
    """
    found = []
    for path in paths:
        with suppress(OSError):  # another process keeps within its limit, too
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                found.append((max(status.st_mtime, status.st_atime), status.st_size, path))
    total = sum(size for _, size, _ in found)
    for used, size, path in sorted(found) if total > limit else ():
        if total > left and not stays(path, used):
            with suppress(OSError):
                path.unlink()
                total -= size


def last_error() -> BaseException | None:
    """What is handled now, such as an exception that leaves a block; else what nobody has caught."""
    return sys.exc_info()[1] or getattr(sys, "last_value", None)


def work_path() -> Path | None:
    """CANN's folder for what its programs leave, where the environment names one."""
    found = os.environ.get("ASCEND_WORK_PATH")
    return Path(found).absolute() if found else None


def write_json(path: Path, data: Any) -> None:
    write(path, json.dumps(data, indent=1))


def append_csv(path: Path, head: Sequence[str], lines: Sequence[Sequence[object]]) -> None:
    """All lines or none, with the head where the file is new; one with another head stays as it is."""
    path.touch()
    with path.open("rb") as file:
        found = file.readline()
    if found not in (b"", _csv([head])):
        path, found = reserve(path), b""
    append(path, _csv(lines if found else [head, *lines]))


def _csv(lines: Sequence[Sequence[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue().encode()


def append(path: Path | str, data: bytes) -> None:
    """By one call of the system, all or nothing: what other processes append at the same time stays whole, too."""
    with open(path, "ab", buffering=0) as file:
        if (written := file.write(data)) < len(data):
            file.truncate(file.tell() - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def name_of(text: str) -> str:
    """As part of a file's name."""
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in text)

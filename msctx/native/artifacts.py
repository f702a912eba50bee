"""What is compiled once and kept in the cache, in ``<kind>/``: a file that is named after everything it was made from."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from msctx.errors import NativeError
from msctx.native import cachedir

KINDS = ("native", "cuda", "build")
KEEP_DAYS = 30
"""What nobody has used for so long is removed."""
EVERY = 30
"""Seconds between two lines about what takes long."""


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def hashes(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: sha256(data) for name, data in files.items()}


def digest(*parts: Any) -> str:
    """A key of plain data."""
    return sha256(json.dumps(parts, sort_keys=True).encode())


def cached(kind: str, name: str) -> Path | None:
    """The file, if it was made. Takes no lock and needs no right to write."""
    place = cachedir.location()
    path = place / kind / name
    with cachedir.naming(path):
        if not cachedir.check(place) or not path.is_file():
            return None
    with suppress(OSError):  # what is used stays
        os.utime(path)
    return path


def obtain(kind: str, name: str, make: Callable[[], bytes]) -> tuple[Path, bool]:
    """The file from the cache, else made by one process and thread; whether it was made now."""
    if (found := cached(kind, name)) is not None:
        return found, False
    path = cachedir.folder(kind) / name
    with cachedir.naming(path), locked(path):
        if (found := cached(kind, name)) is not None:
            return found, False
        cachedir.write(path, make())
    with suppress(OSError, NativeError):
        _clear(time.time() - KEEP_DAYS * 86400)
    return path, True


def remove() -> int:
    """Remove everything; returns how many bytes that were."""
    return _clear(time.time() + 1)


def _clear(before: float) -> int:
    """Remove what was last used before a time."""
    cache, size = cachedir.location(), 0
    for path in [path for kind in KINDS for path in cache.glob(f"{kind}/*")] if cachedir.check(cache) else ():
        used = path / ".ninja_log" if path.is_dir() else path
        with suppress(FileNotFoundError):  # another process tidies up, too
            if path.suffix != ".lock" and (used if used.exists() else path).lstat().st_mtime < before:
                size += sum(each.lstat().st_size for each in [path, *path.rglob("*")] if each.is_file())
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    return size


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Be the only thread of all processes that makes *path*; it says when it waits for another one, and every half a minute."""
    lock, seconds = FileLock(path.with_suffix(".lock"), mode=0o600), 1.0
    while not lock.is_locked:
        try:
            lock.acquire(timeout=seconds)
        except Timeout:
            say("another process is building kernels; waiting for it")
            seconds = EVERY
        except NotImplementedError:
            raise NativeError(f"{path.parent}: files cannot be locked there; {cachedir.ELSEWHERE}") from None
    try:
        yield
    finally:
        lock.release()


def say(line: str, *, over: bool = False) -> None:
    """On standard error, if there is one. *over*: in place of the last line of a terminal."""
    with suppress(OSError, ValueError):
        text, end = (f"\r\x1b[K{line and f'msctx: {line}'}", "") if over else (f"msctx: {line}", "\n")
        print(text, end=end, file=sys.stderr, flush=True)

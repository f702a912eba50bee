"""What is compiled once and kept: a file named after everything it was made from, with a note.

In the cache: ``<kind>/<key>.<suffix>``; ``<kind>/<key>.json``, written last: its size, and facts for people; ``tmp/``: locks, and
folders of work in progress.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from msctx.errors import NativeError
from msctx.native import cachedir

KINDS = ("native", "objects", "cuda")
KEEP_DAYS = 30
"""What nobody has used for so long is removed."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A whole file; *note*: what its maker recorded; *cached*: it was there before."""

    path: Path
    note: dict[str, Any]
    cached: bool

    @property
    def data(self) -> bytes:
        return self.path.read_bytes()


Make = Callable[[Path], tuple[bytes | None, dict[str, Any]]]
"""Makes a file in an empty folder of its own; returns the data (``None``: failed) and the note."""


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def hashes(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: sha256(data) for name, data in files.items()}


def digest(*parts: Any) -> str:
    """A key of plain data."""
    return sha256(json.dumps(parts, sort_keys=True).encode())


def cached(kind: str, name: str, fits: Callable[[dict[str, Any]], bool] = bool) -> Artifact | None:
    """The file if it is whole and its note *fits*. Takes no lock and needs no right to write."""
    folder = cachedir.existing(kind)
    if folder is None:
        return None
    path = folder / name
    beside = path.with_suffix(".json")
    with cachedir.naming(folder):
        if not (path.is_file() and beside.is_file()):
            return None
        try:
            note = json.loads(beside.read_bytes())
            if note["size"] != path.stat().st_size or not fits(note):
                return None
        except (FileNotFoundError, ValueError, TypeError, KeyError):  # another process tidies up; the note is something else
            return None
    with suppress(OSError):  # what is used stays
        os.utime(beside)
    return Artifact(path, note, True)


def store(kind: str, name: str, data: bytes, note: dict[str, Any]) -> Artifact:
    path = cachedir.folder(kind) / name
    note = {"size": len(data), **note}
    cachedir.write(path, data)
    cachedir.write(path.with_suffix(".json"), json.dumps(note, indent=2).encode())
    return Artifact(path, note, False)


def obtain(
    kind: str,
    name: str,
    make: Make,
    fits: Callable[[dict[str, Any]], bool] = bool,
    waiting: Callable[[], None] = lambda: None,
) -> Artifact | str:
    """The file from the cache, else made by one process and thread; where *make* has none, the ``log`` of its note.

    *waiting* is called when another one is making it.
    """
    if (found := cached(kind, name, fits)) is not None:
        return found
    key = Path(name).stem
    with cachedir.naming(cachedir.folder(kind)), _locked(key, waiting):
        if (found := cached(kind, name, fits)) is not None:
            return found
        _remove_scratch(key)  # of a process that was killed
        scratch = cachedir.folder("tmp", f"{key}.{secrets.token_hex(4)}")
        try:
            data, note = make(scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        result = note["log"] if data is None else store(kind, name, data, note)
    with suppress(OSError, NativeError):
        _clear(time.time() - KEEP_DAYS * 86400, None)
    return result


def remove() -> int:
    """Remove everything, after builds in progress; returns how many bytes that were."""
    return _clear(time.time() + 1, lambda: None)


def _clear(before: float, waiting: Callable[[], None] | None) -> int:
    """Remove what was last used before a time, and what killed processes left; without *waiting*, nothing that is in use."""
    cache, size = cachedir.existing(), 0
    for lock in cache.glob("tmp/*.lock") if cache else ():
        with suppress(Timeout), _locked(lock.stem, waiting):
            _remove_scratch(lock.stem)
            lock.unlink(missing_ok=True)
    for path in [path for kind in KINDS for path in cache.glob(f"{kind}/**/*")] if cache else ():
        note = path.with_suffix(".json")
        if path.is_file() and (note if note.exists() else path).lstat().st_mtime < before:
            size += path.lstat().st_size
            path.unlink()
    return size


def _remove_scratch(key: str) -> None:
    for path in cachedir.folder("tmp").glob(f"{key}.*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _locked(key: str, waiting: Callable[[], None] | None) -> Iterator[None]:
    """Be the only thread of all processes that works on *key*; raises Timeout where another one does and there is no *waiting*."""
    lock = FileLock(cachedir.folder("tmp") / f"{key}.lock", mode=0o600)
    try:
        try:
            lock.acquire(timeout=1 if waiting else 0)
        except Timeout:
            if not waiting:
                raise
            waiting()
            lock.acquire(timeout=-1)
    except NotImplementedError:
        raise NativeError(f"{lock.lock_file}: files cannot be locked there; {cachedir.ELSEWHERE}") from None
    try:
        yield
    finally:
        lock.release()

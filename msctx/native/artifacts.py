"""What is compiled once and kept: a file named after everything it was made from, with a note.

In the cache: ``<kind>/<key>.<suffix>``, and ``<kind>/<key>.json``, written last: its size, and facts for people.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Artifact:
    """A whole file; *note*: what its maker recorded; *cached*: it was there before."""

    path: Path
    note: dict[str, Any]
    cached: bool

    @property
    def data(self) -> bytes:
        return self.path.read_bytes()


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
        try:
            note = json.loads(beside.read_bytes())
            if note["size"] != path.stat().st_size or not fits(note):
                return None
        except (FileNotFoundError, ValueError, TypeError, KeyError):  # another process tidies up; the note is something else
            return None
    with suppress(OSError):  # what is used stays
        os.utime(beside)
    return Artifact(path, note, True)


def obtain(
    kind: str, name: str, make: Callable[[], tuple[bytes, dict[str, Any]]], fits: Callable[[dict[str, Any]], bool] = bool
) -> Artifact:
    """The file from the cache, else made by one process and thread: *make* returns its content and its note."""
    if (found := cached(kind, name, fits)) is not None:
        return found
    path = cachedir.folder(kind) / name
    with cachedir.naming(path), locked(path):
        if (found := cached(kind, name, fits)) is not None:
            return found
        data, note = make()
        note = {"size": len(data), **note}
        cachedir.write(path, data)
        cachedir.write(path.with_suffix(".json"), json.dumps(note, indent=2).encode())
    with suppress(OSError, NativeError):
        _clear(time.time() - KEEP_DAYS * 86400)
    return Artifact(path, note, False)


def remove() -> int:
    """Remove everything; returns how many bytes that were."""
    return _clear(time.time() + 1)


def _clear(before: float) -> int:
    """Remove what was last used before a time."""
    cache, size = cachedir.existing(), 0
    for path in [path for kind in KINDS for path in cache.glob(f"{kind}/*")] if cache else ():
        if path.suffix == ".lock":
            continue
        with suppress(FileNotFoundError), locked(path) if path.is_dir() else nullcontext():  # another process tidies up, too
            note = path / ".ninja_log" if path.is_dir() else path.with_suffix(".json")
            if (note if note.exists() else path).lstat().st_mtime < before:
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
        print(
            f"\r\x1b[K{line and f'msctx: {line}'}" if over else f"msctx: {line}",
            end="" if over else "\n",
            file=sys.stderr,
            flush=True,
        )

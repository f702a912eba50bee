"""The cache folder and what is kept in it. A library is code that runs as the user: the folder belongs to the user or root, and
nobody else can write to it. What is compiled is kept in ``<kind>/``, in a file that is named after everything it was made from.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from msctx.errors import NativeError

VARIABLE = "MSCTX_CACHE_DIR"
ELSEWHERE = f"set {VARIABLE} to a folder that only you can write"


def location() -> Path:
    """Where the cache is to be; nothing is checked yet."""
    from platformdirs import user_cache_dir

    path = Path(os.path.expanduser(os.environ.get(VARIABLE) or user_cache_dir("msctx")))
    if not path.is_absolute():  # or there is no home folder
        raise NativeError(f"{path}: is not an absolute path; {ELSEWHERE}")
    return path


def folder(*parts: str) -> Path:
    """The cache, or a folder in it, made where missing; refused as :func:`made` does."""
    path = made(location(), ELSEWHERE).joinpath(*parts)
    with naming(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


def made(path: Path, do: str) -> Path:
    """The folder, made for the user alone where it is missing; *do*: what to do where it is refused.

    Raises:
        NativeError: somebody else could have written there, or it cannot be made.
    """
    check(path, do)
    with naming(path, do):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(OSError):  # it is root's, or mounted read-only
        path.chmod(0o700)
    return path


def check(path: Path, do: str = ELSEWHERE) -> None:
    """Raise the NativeError of a folder in which somebody else could have written."""
    with naming(path, do), suppress(FileNotFoundError):
        if (status := path.stat()).st_uid not in (0, os.geteuid()):
            raise refused(path, "belongs to another user", do)
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise refused(path, "can be written by others", do)


def usable() -> None:
    """Raise the NativeError with which a build would end because of the folder; writes nothing."""
    check(place := location())
    found = next(folder for folder in [place, *place.parents] if folder.exists())
    if not os.access(found, os.W_OK | os.X_OK, effective_ids=True):
        raise NativeError(f"{place}: cannot be written; {ELSEWHERE}")


def refused(path: Path, why: str, do: str) -> NativeError:
    return NativeError(f"{path}: {why}, so code from there might be another user's and is not loaded; delete it, or {do}")


@contextmanager
def naming(path: Path, do: str = ELSEWHERE) -> Iterator[None]:
    """An OSError becomes a NativeError with the path and what to do, and so does filelock's for a disk without locks."""
    try:
        yield
    except (OSError, NotImplementedError) as error:
        place, why = getattr(error, "filename", None) or path, getattr(error, "strerror", None) or error
        raise NativeError(f"{place}: {why}; {do}") from None


def write(path: Path, data: bytes | memoryview | Callable[[Any], object], mode: int = 0o600) -> None:
    """Write a file whole or not at all; for the user alone, if nothing else is given. *data* may be a function that fills it."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with open(part, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            data(file) if callable(data) else file.write(data)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def digest(*parts: Any) -> str:
    """A key of plain data and of bytes."""
    text = json.dumps(parts, sort_keys=True, default=lambda data: hashlib.sha256(data).hexdigest())
    return hashlib.sha256(text.encode()).hexdigest()


def cached(kind: str, name: str) -> Path | None:
    """The file, if it was made. Takes no lock and needs no right to write."""
    check(place := location())
    return path if (path := place / kind / name).is_file() else None


def obtain(kind: str, name: str, make: Callable[[], bytes]) -> Path:
    """The file, made by the only thread of all processes that makes anything."""
    usable()
    from filelock import FileLock, Timeout  # here: it takes milliseconds to import

    path, lock = folder(kind) / name, FileLock(folder() / "building.lock", mode=0o600)
    with naming(path):
        try:
            held = lock.acquire(timeout=1)
        except Timeout:
            say("another process is building kernels; waiting for it")
            held = lock.acquire()
        with held:
            if not path.is_file():
                write(path, make())
    return path


def remove() -> int:
    """Remove what was compiled; returns how many bytes that were."""
    folders = [location() / kind for kind in ("native", "cuda", "build")]
    size = sum(each.lstat().st_size for folder in folders for each in folder.rglob("*") if each.is_file())
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    return size


def say(line: str) -> None:
    """On standard error, if there is one."""
    with suppress(OSError, ValueError):
        print(f"msctx: {line}", file=sys.stderr, flush=True)

"""The cache folder: it belongs to the user or root, and nobody else can write to it. A library is code that runs as the user."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EDQUOT, ENOSPC
from pathlib import Path

from platformdirs import user_cache_dir

from msctx.errors import NativeError

VARIABLE = "MSCTX_CACHE_DIR"
ELSEWHERE = f"set {VARIABLE} to a folder that you alone can write"


def location() -> Path:
    """Where the cache is to be; nothing is checked yet."""
    given = os.environ.get(VARIABLE, "")
    path = Path(os.path.expanduser(given)) if given else Path(user_cache_dir("msctx"))
    if not path.is_absolute():
        why = f"{VARIABLE}={given}: is not an absolute path" if given else f"{path}: there is no home folder"
        raise NativeError(f"{why}; {ELSEWHERE}")
    return path


def folder(*parts: str) -> Path:
    """The cache, or a folder in it, made where missing.

    Raises:
        NativeError: somebody else could have written there, or it cannot be made.
    """
    path = made(location(), ELSEWHERE)
    with naming(path):
        for part in parts:
            path /= part
            path.mkdir(mode=0o700, exist_ok=True)
    return path


def made(path: Path, do: str) -> Path:
    """The folder, made for the user alone where it is missing; *do*: what to do where it is refused.

    Raises:
        NativeError: somebody else could have written there, or it cannot be made.
    """
    with naming(path, do):
        if not check(path, do):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.stat().st_uid == os.geteuid() and path.stat().st_mode & 0o077:
            with suppress(OSError):  # it is mounted read-only
                path.chmod(0o700)
    return path


def check(path: Path, do: str = ELSEWHERE) -> bool:
    """Whether there is such a folder.

    Raises:
        NativeError: somebody else could have written there.
    """
    with naming(path, do):
        if not path.exists():
            return False
        status = path.stat()
        if not stat.S_ISDIR(status.st_mode):
            raise NativeError(f"{path}: is not a folder; {do}")
        if not is_trusted(status):
            raise refused(path, "belongs to another user", do)
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise refused(path, "can be written by others", do)
    return True


def usable() -> None:
    """Raise the NativeError with which a build would end because of the folder; writes nothing."""
    place = location()
    check(place)
    found = next(folder for folder in [place, *place.parents] if folder.exists())
    if os.statvfs(found).f_flag & os.ST_NOEXEC:
        raise NativeError(f"{place}: nothing can be loaded from there (it is mounted noexec); {ELSEWHERE}")
    if not os.access(found, os.W_OK | os.X_OK, effective_ids=True):
        raise NativeError(f"{place}: cannot be written; {ELSEWHERE}")


def is_trusted(status: os.stat_result) -> bool:
    """Whether what is there belongs to the user or root."""
    return status.st_uid in (0, os.geteuid())


def refused(path: Path, why: str, do: str) -> NativeError:
    return NativeError(f"{path}: {why}, so code from there might be somebody else's and is not loaded; delete it, or {do}")


def write(path: Path, data: bytes | memoryview) -> None:
    """Write a file whole or not at all, for the user alone whatever the umask is."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(data)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


@contextmanager
def naming(path: Path, do: str = ELSEWHERE) -> Iterator[None]:
    """An OSError becomes a NativeError with the path and what to do."""
    try:
        yield
    except OSError as error:
        room = "make room there, or " if error.errno in (ENOSPC, EDQUOT) else ""
        raise NativeError(f"{error.filename or path}: {error.strerror or error}; {room}{do}") from None

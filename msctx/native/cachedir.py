"""The cache folder: nothing is loaded from a place where anybody but the user (or root) could have put it.

A library is code that runs as the user. So every folder on the way to it, each symlink, and the file itself must be owned by
the user or root, and writable by nobody else; the rules are those of ssh's StrictModes.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EDQUOT, ELOOP, ENOSPC
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
    """The cache, or a folder in it, created where missing, with all symlinks resolved and everything on the way checked.

    Raises:
        NativeError: somebody else could have written there, or it cannot be created.
    """
    return _walk(location().joinpath(*parts), create=True)[0]


def checked(path: Path, do: str) -> Path:
    """A folder elsewhere of which the same is demanded; *do*: what to do where it is refused.

    Raises:
        NativeError: somebody else could have written there, or it cannot be created.
    """
    return _walk(path, create=True, do=do)[0]


def existing(*parts: str) -> Path | None:
    """The same folder if it exists, else ``None``; writes nothing."""
    path, there = _walk(location().joinpath(*parts), create=False)
    return path if there else None


def usable() -> None:
    """Raise the NativeError with which a build would end because of the folder; writes nothing."""
    place = location()
    found, there = _walk(place, create=False)
    with naming(place):
        if os.statvfs(found).f_flag & os.ST_NOEXEC:
            raise NativeError(f"{place}: nothing can be loaded from there (it is mounted noexec); {ELSEWHERE}")
        if not os.access(found, os.W_OK | os.X_OK, effective_ids=True):
            raise NativeError(f"{place}: cannot be {'written' if there else 'made'}; {ELSEWHERE}")


def is_own_file(path: Path) -> bool:
    """Whether a regular file is there; raises where somebody else could have written it."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return False
    if stat.S_ISREG(status.st_mode):
        _check(path, status, is_end=True)
    return stat.S_ISREG(status.st_mode)


def write(path: Path, data: bytes) -> None:
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


def _walk(path: Path, create: bool, do: str = ELSEWHERE) -> tuple[Path, bool]:
    """Go from / to *path*, checking each folder and symlink before entering it; returns how far that led, and if to its end."""
    ahead, here, links = [*reversed(path.parts[1:])], Path("/"), 0
    _check(here, os.lstat(here), is_end=not ahead, do=do)
    while ahead:
        part = ahead.pop()
        if part == "..":
            here = here.parent  # a real folder, checked on the way here
            continue
        step = here / part
        with naming(step, do):
            try:
                status = os.lstat(step)
            except FileNotFoundError:
                if not create:
                    return here, False
                _make(step)
                status = os.lstat(step)
        if stat.S_ISDIR(status.st_mode):
            _check(step, status, is_end=not ahead, do=do)
            here = step
        elif not stat.S_ISLNK(status.st_mode):
            raise NativeError(f"{step}: is not a folder; {do}")
        elif (links := links + 1) > 40:
            raise NativeError(f"{path}: {os.strerror(ELOOP)}; {do}")
        else:
            if status.st_uid not in (0, os.geteuid()):
                raise _refused(step, f"is a symlink of {_name(status.st_uid)}", do)
            target = Path(os.readlink(step))
            ahead += reversed(target.parts[1:] if target.is_absolute() else target.parts)
            here = Path("/") if target.is_absolute() else here
    return here, True


def _make(path: Path) -> None:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:  # another process was faster
        return
    os.chmod(path, 0o700)  # a umask can take the user's own rights away


def _check(path: Path, status: os.stat_result, is_end: bool, do: str = ELSEWHERE) -> None:
    """Refuse what others could have written. In a sticky folder on the way (/tmp) they cannot replace what is the user's own."""
    if status.st_uid not in (0, os.geteuid()):
        raise _refused(path, f"belongs to {_name(status.st_uid)}", do)
    open_to = [who for bit, who in ((stat.S_IWGRP, "its group"), (stat.S_IWOTH, "everybody")) if status.st_mode & bit]
    if open_to and (is_end or not status.st_mode & stat.S_ISVTX):
        raise _refused(path, f"can be written by {' and '.join(open_to)}", f"run `chmod go-w {path}`, or {do}")


def _refused(path: Path, why: str, do: str) -> NativeError:
    return NativeError(f"{path}: {why}, so a library from there might be somebody else's and is not loaded; {do}")


def _name(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"

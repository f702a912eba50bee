"""A cache of compiled code as one file, for other processes and machines: a zip of the folder's files with what they are of.

The files are libraries and pickles, that is: code. Checksums show that an archive is whole, not that whoever made it means well.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from msctx.errors import Diagnostic, FileError, NativeError
from msctx.graph import cache, cache_stamp
from msctx.graph.cache_stamp import stamp
from msctx.native import cachedir

MANIFEST = "manifest.json"
MAJOR, MINOR = 1, 0
"""Another major number is not read."""
NAME = "msctx compile cache archive"
_PARTS = re.compile(r"(?!\.)[\w.+-]+(/(?!\.)[\w.+-]+)*")
_DAMAGED = (ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What reading an archive raises where it is damaged, encrypted or packed in another way."""
_CODE = "an archive of compiled code is code: it runs as you. Import only what you, or somebody you trust, have exported"


def roots(path: Path) -> list[Path]:
    """The caches in a folder that compile_cache_path or op_compiler_cache_dir names, or that folder itself."""
    inner = [*sorted(path.glob("rank_*")), path / "kernel_cache"]
    return [root for root in (path, *inner) if (cache.is_ours(root) and not cache.stamp_of(root)) or cache.folders(root)]


def export(path: Path, target: Path) -> dict[str, Any]:
    """Pack what this machine uses of the caches in *path*.

    Raises:
        FileError: there is nothing, others could have put it there, or the file cannot be written.
    """
    found = {root.name if root != path else ".": root / stamp().name for root in roots(path)}
    found = {name: _folder(folder) for name, folder in found.items() if folder.is_dir() and not cache.refusals(folder)}
    listed: dict[str, dict[str, Any]] = {}
    policies: set[str] = set()
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    with _naming(target, "written"):
        try:
            with zipfile.ZipFile(part, "x", zipfile.ZIP_DEFLATED, compresslevel=6) as file:
                for name, folder in found.items():
                    policies.update(cache.policies_of(folder) or [])
                    for one in sorted(_entries(folder)):
                        with suppress(FileNotFoundError):  # another process keeps within its limit
                            data, inner = one.read_bytes(), f"{name}/{one.relative_to(folder).as_posix()}".removeprefix("./")
                            file.writestr(inner, data)
                            listed[inner] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
                if not listed:
                    raise FileError([_nothing(path)])
                about = {"format": f"{NAME} {MAJOR}.{MINOR}", "stamp": asdict(stamp()), "place": cache_stamp.place()}
                file.writestr(MANIFEST, json.dumps(about | {"policies": sorted(policies), "files": listed}, indent=1))
            os.link(part, target)  # never over another file
        finally:
            part.unlink(missing_ok=True)
    return {"file": str(target), "files": len(listed), "bytes": target.stat().st_size, "policies": sorted(policies)}


def _nothing(path: Path) -> Diagnostic:
    hint = "run the program under enable_compile_cache=True first, or name its folder with --path"
    return Diagnostic("", "there is nothing compiled in it that this machine uses", str(path), suggestion=hint)


def _entries(folder: Path) -> Iterator[Path]:
    """The files that another process can use: no locks, nothing that is not whole yet."""
    for path in folder.rglob("*"):
        inner = path.relative_to(folder).as_posix()
        is_whole = inner != cache.MARKER and _PARTS.fullmatch(inner) and not inner.endswith((".lock", ".tmp"))
        if is_whole and path.is_file() and not path.is_symlink():
            yield path


def import_(source: Path, path: Path, warn: Callable[[str], object]) -> dict[str, Any]:
    """Unpack an archive into the caches in *path*. What is there already stays.

    Raises:
        FileError: it is refused, and nothing was unpacked.
    """
    warn(f"{source}: {_CODE}")
    with _naming(source, "read"):
        if not source.is_file():
            raise _refused(source, "there is no such file", "")
        try:
            file = zipfile.ZipFile(source)
        except zipfile.BadZipFile as error:
            raise _refused(source, f"it is truncated, or no archive of `msctx cache export` ({error})") from None
        with file:
            about = _manifest(source, file)
            if about.get("place") != cache_stamp.place():
                warn(
                    f"{source}: torch or Python lies elsewhere here: graphs are found again, and their C++ is compiled once more"
                )
            counts = _unpack(source, file, about, path)
    return {"file": str(source), "to": str(path), **counts, "policies": about["policies"]}


def _manifest(source: Path, file: zipfile.ZipFile) -> dict[str, Any]:
    """What the archive is, once it is known to be of here and complete."""
    try:
        about: dict[str, Any] = json.loads(_contents(file, MANIFEST, 2**26))
    except (KeyError, OSError, *_DAMAGED):
        raise _refused(source, f"it has no {MANIFEST} that can be read, so it is no archive of `msctx cache export`") from None
    version = re.fullmatch(rf"{NAME} ([0-9]{{1,6}})\.[0-9]{{1,6}}", str(about.get("format") if isinstance(about, dict) else ""))
    if version is None:
        raise _refused(source, "its manifest is not that of `msctx cache export`")
    if int(version[1]) > MAJOR:
        raise _refused(
            source, f"its format is {about['format']}, and this msctx knows {MAJOR}", "update msctx, or compile anew"
        )
    theirs, listed = cache_stamp.read(about.get("stamp")), about.get("files")
    if theirs is None or not isinstance(listed, dict) or not _is_sound(listed) or not isinstance(about.get("policies"), list):
        raise _refused(source, "its manifest is damaged")
    if differs := theirs.differs(stamp()):
        raise _refused(source, f"it was made elsewhere: {'; '.join(differs)}", "export it again there, or compile here")
    names = file.namelist()
    if len({*names}) != len(names) or {*names} != {*listed, MANIFEST}:
        raise _refused(source, "its files are not those of its manifest")
    if wrong := next((name for name in listed if not _PARTS.fullmatch(name)), None):
        raise _refused(source, f"{wrong!r} is no name of a file in a cache")
    return about


def _is_sound(listed: dict[str, Any]) -> bool:
    return all(
        isinstance(one, dict) and isinstance(one.get("bytes"), int) and isinstance(one.get("sha256"), str)
        for one in listed.values()
    )


def _contents(file: zipfile.ZipFile, name: str, most: int) -> bytes:
    with file.open(name) as found:
        data = found.read(most + 1)
    if len(data) > most:
        raise ValueError(f"{name} is larger than its manifest has it")
    return data


def _unpack(source: Path, file: zipfile.ZipFile, about: dict[str, Any], path: Path) -> dict[str, int]:
    """First all of it beside the caches, checked; then file by file to its place."""
    counts = {"files": 0, "there already": 0}
    aside = _folder(path / f".msctx-import-{secrets.token_hex(4)}")  # `path` itself may be shared, as /tmp: see docs
    try:
        for name, one in about["files"].items():
            try:
                data = _contents(file, name, one["bytes"])
            except _DAMAGED as error:
                raise _refused(source, f"{name} is damaged ({error})") from None
            if hashlib.sha256(data).hexdigest() != one["sha256"]:
                raise _refused(source, f"{name} is not what was exported: its checksum differs")
            (aside / name).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            (aside / name).write_bytes(data)
        placed = {name: _placed(path, name) for name in about["files"]}
        made = {root: cache.ready(root) for root in {root for root, _ in placed.values()}}
        for folder in made.values():
            cache.mark(folder, {str(policy) for policy in about["policies"]})
        for name, (root, inner) in placed.items():
            place = made[root] / inner
            place.parent.mkdir(parents=True, exist_ok=True)
            counts["there already" if place.exists() else "files"] += 1
            if not place.exists():
                os.replace(aside / name, place)
    except NativeError as error:
        raise FileError([Diagnostic("", str(error), str(path))]) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return counts


def _folder(path: Path) -> Path:
    try:
        return cachedir.checked(path, cache.DO)
    except NativeError as error:
        raise FileError([Diagnostic("", str(error), str(path))]) from None


def _placed(path: Path, name: str) -> tuple[Path, str]:
    """The cache, and the place in it, of a file of an archive."""
    first, _, rest = name.partition("/")
    return (path / first, rest) if re.fullmatch(r"rank_[0-9]+|kernel_cache", first) and rest else (path, name)


def _refused(source: Path, why: str, do: str = "compile here, or export it again") -> FileError:
    return FileError([Diagnostic("", f"is refused: {why}. Nothing was unpacked", str(source), suggestion=do)])


@contextmanager
def _naming(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FileError([Diagnostic("", f"cannot be {what}: {error.strerror or error}", str(path))]) from None


def contents(path: Path) -> dict[str, Any]:
    """What the caches in a folder hold, by stamp, and what of it this machine uses."""
    listed = []
    for root in roots(path):
        for folder in cache.folders(root):
            theirs, differs = cache.stamp_of(folder), cache.refusals(folder)
            files = [one.stat() for one in _entries(folder)]
            listed.append(
                {
                    "cache": str(root),
                    "folder": folder.name,
                    "used_here": not differs,
                    "differs": differs,
                    "graphs": sum(1 for one in folder.glob("fxgraph/*/*/*") if one.is_file()),
                    "files": len(files),
                    "bytes": sum(one.st_size for one in files),
                    "last_used": max((int(max(one.st_mtime, one.st_atime)) for one in files), default=None),
                    "policies": cache.policies_of(folder) or [],
                    "stamp": theirs and asdict(theirs),
                }
            )
    return {"path": str(path), "stamp_here": asdict(stamp()), "caches": listed}


def clear(path: Path, stale: bool) -> dict[str, Any]:
    """Throw what is in the caches away; *stale*: only what this machine does not use."""
    gone = 0
    for root in roots(path):
        gone += cache.throw_away(root, [one for one in cache.folders(root) if not stale or cache.refusals(one)])
    return {"path": str(path), "bytes_removed": gone}

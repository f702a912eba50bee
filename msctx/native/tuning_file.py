"""The tuning file: what was measured, for later processes. JSON for people and for git: an entry a line, no paths of a machine."""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

from msctx.errors import Diagnostic, FileError, NativeError
from msctx.native import cachedir
from msctx.native.environment_key import Stamp
from msctx.options.documents import Parsed, parse_json

NAME = "msctx tuning"
MAJOR, MINOR = 1, 0
"""Another major number is not read; a higher minor one is read, and left as it is."""
PATIENCE = 10.0
"""Seconds to wait for another process that writes the same file."""
IN_CACHE = "tuning/convolutions.json"
ASIDE = "move it away (msctx makes a new one), or name another file with tuning_file"


class Key(NamedTuple):
    """What there can be one result for under a stamp."""

    direction: str
    problem: str
    threads: int
    permissions: str


@dataclass(frozen=True, slots=True)
class Entry:
    """What was chosen for a problem: *ran* and *math* as in choices(), each contender's time in units of the winner's, and when."""

    direction: str
    problem: str
    threads: int
    permissions: str
    ran: str
    math: str
    measured: dict[str, float | None] = field(hash=False)
    when: str

    @property
    def key(self) -> Key:
        return Key(self.direction, self.problem, self.threads, self.permissions)

    @property
    def line(self) -> str:
        return json.dumps({f.name: getattr(self, f.name) for f in fields(self)}, ensure_ascii=False)


Groups = dict[Stamp, dict[Key, Entry]]


class Counts(NamedTuple):
    """What a merge did."""

    added: int
    replaced: int
    same: int


def location(said: str | None = None) -> Path:
    """The file of the option ``tuning_file``, else the one in the cache."""
    if said is not None:
        return Path(os.path.abspath(os.path.expanduser(said)))
    return cachedir.location() / IN_CACHE


def read(path: Path) -> Groups:
    """What a file holds; nothing, where there is none.

    Raises:
        FileError: it cannot be read, or is no tuning file.
    """
    return _load(path)[0]


def merge(path: Path, new: Mapping[Stamp, Mapping[Key, Entry]], *, override: bool) -> Counts:
    """Add entries to a file, whoever else writes it meanwhile. *override*: they take the place of others of the same key.

    Raises:
        FileError: it cannot be read or written, or is no tuning file: then it is left as it is.
    """
    with _locked(path):
        groups, minor = _load(path)
        if minor > MINOR:
            text = f"is written by a newer msctx (format {MAJOR}.{minor}); this one reads it and leaves it as it is"
            raise FileError([Diagnostic("", text, str(path), suggestion="update msctx, or name another file with tuning_file")])
        counts = [0, 0, 0]
        for stamp, entries in new.items():
            group = groups.setdefault(stamp, {})
            for key, entry in entries.items():
                before = group.get(key)
                counts[0 if before is None else 2 if before == entry or not override else 1] += 1
                if before is None or override:
                    group[key] = entry
        if counts[0] or counts[1]:
            _write(path, groups)
    return Counts(*counts)


def remove(path: Path, stamps: set[Stamp] | None = None) -> int:
    """Remove the groups of these stamps, or all and the file; returns how many entries they held."""
    with _locked(path):
        groups, _ = _load(path)
        gone = set(groups) if stamps is None else stamps & set(groups)
        count = sum(len(groups.pop(stamp)) for stamp in gone)
        with _telling(path, "written"):
            if groups:
                _write(path, groups)
            elif path.exists():
                path.resolve().unlink()  # a link stays; what it leads to goes
    return count


def text_of(groups: Mapping[Stamp, Mapping[Key, Entry]]) -> str:
    """The file: the same entries give the same bytes."""
    parts = []
    for stamp, entries in sorted(groups.items()):
        lines = ",\n".join(f"        {entries[key].line}" for key in sorted(entries))
        stamped = json.dumps(stamp._asdict(), indent=2, ensure_ascii=False).replace("\n", "\n      ")
        parts.append(f'    {{\n      "stamp": {stamped},\n      "entries": [\n{lines}\n      ]\n    }}')
    body = ",\n".join(parts)
    return f'{{\n  "format": "{NAME} {MAJOR}.{MINOR}",\n  "groups": [\n{body}\n  ]\n}}\n'


# --- reading ----------------------------------------------------------------------------------------------------------


def _load(path: Path) -> tuple[Groups, int]:
    with _telling(path, "read"):
        try:
            if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe would be waited for
                raise FileError([Diagnostic("", "is no regular file", str(path), suggestion=ASIDE)])
            text = path.read_text(encoding="utf-8-sig")
        except FileNotFoundError:
            return {}, 0
        except UnicodeDecodeError as error:
            problem = Diagnostic("", f"is not UTF-8 text (byte {error.start})", str(path), suggestion=ASIDE)
            raise FileError([problem]) from None
    return parse(text, str(path))


def parse(text: str, file: str) -> tuple[Groups, int]:
    """The entries of a text, and the minor number of its format. *file* is how places name it."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = None
    reading = _Reading(data, text, file)
    minor = reading.minor()
    groups: Groups = {}
    for i, group in enumerate(reading.sequence(data, ("groups",))):
        stamp = reading.stamp(group, ("groups", i, "stamp"))
        entries = groups.setdefault(stamp, {})
        for j, found in enumerate(reading.sequence(group, ("groups", i, "entries"))):
            entry = reading.entry(found, ("groups", i, "entries", j))
            entries[entry.key] = entry
    return groups, minor


class _Reading:
    """Checks a document as far as it is used; places are looked up only for what is wrong."""

    def __init__(self, data: Any, text: str, file: str) -> None:
        self.data, self.text, self.file = data, text, file

    def wrong(self, path: tuple[str | int, ...], text: str, allowed: str = "") -> FileError:
        parsed: Parsed = parse_json(self.text, self.file)
        first, *rest = parsed.problems or [Diagnostic(".".join(map(str, path)), text, allowed=allowed, mark=parsed.mark(path))]
        first = replace(first, text=f"{first.text}. The file is left as it is, and not used: {ASIDE}")
        return FileError([first, *rest])

    def minor(self) -> int:
        said = self.data.get("format") if isinstance(self.data, dict) else None
        name, _, version = str(said or "").rpartition(" ")
        major, _, minor = version.partition(".")
        if name != NAME or not (major.isdecimal() and minor.isdecimal()):
            raise self.wrong(("format",), "this is no tuning file of msctx", f'"format": "{NAME} {MAJOR}.{MINOR}"')
        if int(major) != MAJOR:
            raise self.wrong(("format",), f"{version} is a format that this msctx does not read", f"{MAJOR}.{MINOR}")
        return int(minor)

    def sequence(self, data: Any, path: tuple[str | int, ...]) -> list[Any]:
        found = data.get(path[-1]) if isinstance(data, dict) else None
        if not isinstance(found, list):
            raise self.wrong(path, f"{path[-1]} must be a list")
        return found

    def stamp(self, group: Any, path: tuple[str | int, ...]) -> Stamp:
        found = group.get("stamp") if isinstance(group, dict) else None
        return Stamp(**self._texts(found, path, Stamp._fields))

    def entry(self, found: Any, path: tuple[str | int, ...]) -> Entry:
        texts = self._texts(found, path, ("direction", "problem", "permissions", "ran", "math", "when"))
        threads, measured = found.get("threads"), found.get("measured")
        if type(threads) is not int or not 1 <= threads < 2**31:
            raise self.wrong((*path, "threads"), "threads must be a whole number above zero")
        if not isinstance(measured, dict) or not all(r is None or _is_ratio(r) for r in measured.values()):
            raise self.wrong((*path, "measured"), "measured must give a time for each contender, or null")
        return Entry(threads=threads, measured=measured, **texts)

    def _texts(self, found: Any, path: tuple[str | int, ...], names: tuple[str, ...]) -> dict[str, str]:
        values: dict[str, Any] = {name: found.get(name) if isinstance(found, dict) else None for name in names}
        for name, value in values.items():
            if not isinstance(value, str) or not value.isprintable():
                raise self.wrong((*path, name), f"{name} must be text")
        return values


def _is_ratio(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < 1e9


# --- writing ----------------------------------------------------------------------------------------------------------


def _write(path: Path, groups: Groups) -> None:
    """Whole or not at all; a link stays a link, and who may read it does not change."""
    path = path.resolve()
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    with _telling(path, "written"):
        try:
            part.write_text(text_of({stamp: entries for stamp, entries in groups.items() if entries}), encoding="utf-8")
            if path.exists():
                part.chmod(stat.S_IMODE(path.stat().st_mode))
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def _telling(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        text = f"cannot be {what}: {error.strerror or error}"
        hint = "make that possible, or name another file with tuning_file"
        raise FileError([Diagnostic("", text, str(path), suggestion=hint)]) from None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Be the only process that writes the file. The lock lies beside it, so that it holds for all machines that share the folder."""
    if path == location():
        try:
            cachedir.folder(path.parent.name)
        except NativeError as error:
            raise FileError([Diagnostic("", str(error))]) from None
    target = path.resolve()
    lock = FileLock(target.with_name(f".{target.name}.lock"), mode=0o600)
    with _telling(path, "written"):
        try:
            lock.acquire(timeout=PATIENCE)
        except Timeout:
            text = f"cannot be locked: {lock.lock_file} has been held by another process for {PATIENCE:.0f} seconds"
            raise FileError([Diagnostic("", text, str(path), suggestion="end that process, or name another file")]) from None
        except NotImplementedError:
            text = "cannot be locked: its file system has no locks"
            hint = "name a file elsewhere with tuning_file"
            raise FileError([Diagnostic("", text, str(path), suggestion=hint)]) from None
    try:
        yield
    finally:
        lock.release()

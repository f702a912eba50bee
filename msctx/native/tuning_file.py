"""The tuning file: what was measured, for later processes. JSON for people and for git: an entry a line, no paths of a machine."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, NamedTuple

from annotated_types import Interval

from msctx.errors import Diagnostic, FileError, NativeError
from msctx.native import cachedir
from msctx.native.environment_key import Stamp
from msctx.native.json_file import Format, Text, error

MAJOR, MINOR = 1, 0
"""Another major number is not read; a higher minor one is read, and left as it is."""
IN_CACHE = "tuning/convolutions.json"
OTHER = "name another file with tuning_file"
ASIDE = f"move it away (msctx makes a new one), or {OTHER}"
Ratio = Annotated[float, Interval(gt=0, lt=1e9)]


class Key(NamedTuple):
    """What there can be one result for under a stamp."""

    direction: str
    problem: str
    threads: int
    permissions: str


@dataclass(frozen=True, slots=True)
class Entry:
    """What was chosen for a problem: *ran* and *math* as in choices(), each contender's time in units of the winner's, and when."""

    direction: Text
    problem: Text
    threads: Annotated[int, Interval(ge=1, lt=2**31)]
    permissions: Text
    ran: Text
    math: Text
    measured: dict[str, Ratio | None] = field(hash=False)
    when: Text

    @property
    def key(self) -> Key:
        return Key(self.direction, self.problem, self.threads, self.permissions)

    @property
    def line(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class _Group:
    stamp: Stamp
    entries: list[Entry]


@dataclass(frozen=True, slots=True)
class _Document:
    groups: list[_Group]


FORMAT = Format("msctx tuning", MAJOR, MINOR, _Document, "tuning file", ASIDE, OTHER)
Groups = dict[Stamp, dict[Key, Entry]]


class Counts(NamedTuple):
    """What a merge did."""

    added: int
    replaced: int
    same: int


def location(given: str | None = None) -> Path:
    """The file of the option ``tuning_file``, else the one in the cache."""
    if given is not None:
        return Path(os.path.abspath(os.path.expanduser(given)))
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
            raise error(path, text, f"update msctx, or {OTHER}")
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
        with FORMAT.naming(path, "written"):
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
        stamped = json.dumps(asdict(stamp), indent=2, ensure_ascii=False).replace("\n", "\n      ")
        parts.append(f'    {{\n      "stamp": {stamped},\n      "entries": [\n{lines}\n      ]\n    }}')
    body = ",\n".join(parts)
    return f'{{\n  {FORMAT.head},\n  "groups": [\n{body}\n  ]\n}}\n'


def _load(path: Path) -> tuple[Groups, int]:
    found = FORMAT.read(path)
    return ({}, 0) if found is None else _groups(*found)


def parse(text: str, file: str) -> tuple[Groups, int]:
    """The entries of a text, and the minor number of its format. *file* is how places name it."""
    return _groups(*FORMAT.parse(text, file))


def _groups(document: _Document, minor: int) -> tuple[Groups, int]:
    groups: Groups = {}
    for group in document.groups:
        groups.setdefault(group.stamp, {}).update({entry.key: entry for entry in group.entries})
    return groups, minor


def _write(path: Path, groups: Groups) -> None:
    FORMAT.write(path, text_of({stamp: entries for stamp, entries in groups.items() if entries}))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    if path == location():
        try:
            cachedir.folder(path.parent.name)
        except NativeError as unusable:
            raise FileError([Diagnostic("", str(unusable))]) from None
    with FORMAT.locked(path):
        yield

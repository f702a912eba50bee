"""Problems that aoe_tune_mode=offline records into work_path, to be measured later: each process writes a file of its own."""

from __future__ import annotations

import atexit
import json
import os
import secrets
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Interval

from msctx import locks, notices
from msctx.errors import Diagnostic, FileError
from msctx.native.core import Core
from msctx.native.json_file import Format, Text

PATTERN = "msctx_untuned_*.json"
RECORD = 'record with aoe_tune_mode="offline"'
Positive = Annotated[int, Interval(ge=1, lt=2**31)]


@dataclass(frozen=True, slots=True, order=True)
class Untuned:
    """A problem as the key of a tuning file's entry has it, the kind of device that it ran on, and how often."""

    device: Literal["cpu", "cuda"]
    direction: Literal["fprop", "dgrad", "wgrad", "matmul"]
    problem: Text
    threads: Positive
    permissions: Text
    calls: Annotated[int, Interval(ge=1)] = field(compare=False)


@dataclass(frozen=True, slots=True)
class _Document:
    problems: list[Untuned]


FORMAT = Format(
    "msctx untuned",
    *(1, 0, _Document, "file of recorded problems"),
    aside=f"move it away, or {RECORD} anew",
    other="name another folder with work_path",
)

_lock = locks.reentrant()
_tables: list[tuple[Path, str]] = []
"""Folder and kind of device of each table; their numbers begin at 1."""
_written: dict[Path, dict[Untuned, int]] = {}
"""File → how often this process has met its problems, as it says, or would if it could be written."""
_token = 0, ""
"""A process, and the word that names its files: the numbers of processes come again, and containers share them."""


def table(library: Core, folder: str, place: str) -> int:
    """The number under which the library records a place's problems for a folder; if it cannot be written, a warning."""
    with _lock:
        if not _tables:
            atexit.register(keep, library)
        key = Path(os.path.abspath(os.path.expanduser(folder))), place
        if key not in _tables:
            _tables.append(key)
        if not os.access(key[0], os.W_OK | os.X_OK):
            why = "cannot be written" if key[0].is_dir() else "is no folder"
            notices.warn("work_path", str(key[0]), f"nothing is recorded: {key[0]} {why}; {FORMAT.other}")
        return _tables.index(key) + 1


def keep(library: Core) -> None:
    """Write what was recorded, each folder's to this process's file there."""
    with _lock:
        found: dict[Path, list[Untuned]] = {}
        for row in library.recorded():
            folder, place = _tables[row.pop("table") - 1]
            found.setdefault(folder / PATTERN.replace("*", _word()), []).append(Untuned(place, **row))
        for path, problems in found.items():
            counted = {one: one.calls for one in problems}
            if counted == _written.get(path):
                continue
            _written[path] = counted
            try:
                FORMAT.write(path, text_of(problems))
            except FileError as error:
                _tell(path.parent, error)


def _word() -> str:
    global _token
    if _token[0] != os.getpid():  # a forked child writes its own
        _token = os.getpid(), secrets.token_hex(4)
    return _token[1]


def _tell(folder: Path, error: FileError) -> None:
    """Once for a folder: there may have been a warning at the beginning. A scope that closes must be put back all the same."""
    text = "\n".join(map(str, error.problems))
    notices.warn_or_print("work_path", str(folder), f"what was recorded is not kept: {text}")


def text_of(problems: Iterable[Untuned]) -> str:
    """The file: a problem a line, the most frequent first."""
    rows = sorted(problems, key=lambda one: (-one.calls, one))
    lines = ",\n".join(f"    {json.dumps(asdict(one), ensure_ascii=False)}" for one in rows)
    return f'{{\n  {FORMAT.head},\n  "problems": [\n{lines}\n  ]\n}}\n'


def read(place: Path) -> tuple[list[Untuned], list[Path]]:
    """The problems of a file, or of all files in a folder, each once; and these files.

    Raises:
        FileError: there are none, or what is wrong with all of them.
    """
    files = sorted(place.glob(PATTERN)) if place.is_dir() else [place]
    wrong: list[Diagnostic] = []
    calls: Counter[Untuned] = Counter()
    if not files:
        wrong.append(Diagnostic("", f"holds no {FORMAT.what} ({PATTERN})", str(place), suggestion=f"{RECORD} first"))
    for path in files:
        try:
            found = FORMAT.read(path)
        except FileError as error:
            wrong += error.problems
            continue
        if found is None:
            wrong.append(Diagnostic("", "there is no such file or folder", str(path), suggestion=f"{RECORD} first"))
            continue
        for one in found[0].problems:
            calls[one] += one.calls
    if wrong:
        raise FileError(wrong)
    return [replace(one, calls=count) for one, count in calls.items()], files

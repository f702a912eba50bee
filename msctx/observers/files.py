"""Files of observers: a training goes on where they cannot be written, and no half file pretends to be whole."""

from __future__ import annotations

import csv
import io
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from msctx import notices
from msctx.native import distributed


def rank() -> int:
    return distributed.rank() or 0


def guarded(option: str, folder: Path, work: Callable[[], object]) -> bool:
    """Whether *work* could write; else there is one warning for this folder and reason."""
    try:
        work()
    except OSError as error:
        reason = error.strerror or str(error)
        text = f"{option}: {folder}: {reason}; what is missing there is lost, and the program goes on"
        notices.tell(option, f"{folder} {reason}", text)
        return False
    return True


def move(old: Path, new: Path) -> None:
    """Or nothing, where somebody has taken it away."""
    with suppress(FileNotFoundError):
        old.replace(new)


def create(path: Path, fill: Callable[[Path], object]) -> None:
    """Have *fill* write a file beside *path*, and rename it once it is whole.

    Raises:
        OSError: it cannot be written, or something of this name is there. Nothing is left behind.
    """
    with _part(path) as part:
        fill(part)
        if path.exists():
            raise FileExistsError(f"{path} is there already")
        part.rename(path)


def write(path: Path, data: str | bytes) -> None:
    """A whole file or none; one of ours in its place goes."""
    with _part(path) as part:
        part.write_bytes(data.encode() if isinstance(data, str) else data)
        part.replace(path)


@contextmanager
def _part(path: Path) -> Iterator[Path]:
    """An empty file beside *path*, which is gone afterwards unless it was renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    try:
        with part.open("x"):  # tells what is wrong where the library that fills it would not
            pass
        yield part
    finally:
        for left in path.parent.glob(f"{part.name}*"):  # libraries have files of their own on the way
            with suppress(OSError):
                left.unlink()


def reserve(wanted: Path) -> Path:
    """An empty file of this name, or of the name with the time in it: what is there already stays."""
    path, seconds = wanted, int(time.time())
    while True:
        try:
            path.touch(exist_ok=False)
            return path
        except FileExistsError:
            path, seconds = wanted.with_name(f"{wanted.name}.{seconds}"), seconds + 1


def work_path() -> Path | None:
    """CANN's folder for what its programs leave, where the environment names one."""
    found = os.environ.get("ASCEND_WORK_PATH")
    return Path(found).absolute() if found else None


def write_json(path: Path, data: Any) -> None:
    write(path, json.dumps(data, indent=1))


def append_csv(path: Path, head: Sequence[str], lines: Sequence[Sequence[object]]) -> None:
    """Whole lines, with the head where the file is new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    with path.open("ab") as file:
        if file.tell() == 0:
            writer.writerow(head)
        writer.writerows(lines)
        file.write(text.getvalue().encode())


def name_of(text: str) -> str:
    """As part of a file's name."""
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in text)

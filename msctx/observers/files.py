"""Files of observers: a training goes on where they cannot be written, and no half file pretends to be whole."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
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


def write(path: Path, data: str | bytes) -> None:
    """A whole file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_bytes(data.encode() if isinstance(data, str) else data)
    part.replace(path)


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

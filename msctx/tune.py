"""The tuning file for people: what it holds, which of it counts on this machine, and moving entries between files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msctx.errors import Diagnostic, FileError
from msctx.native import tuning, tuning_file
from msctx.native.tuning_file import Groups


def place(file: str | None) -> Path:
    """The file that a command is about: the one named, that of the option ``tuning_file``, or the one in the cache."""
    if file is None:
        from msctx.run.config import read

        setting = read(None, ()).settings.get("tuning_file")
        file = setting.value if setting is not None else None
    return tuning_file.location(file)


def show(path: Path) -> dict[str, Any]:
    """What a file holds, a group for each stamp, and whether this machine uses it (``None``: that cannot be known)."""
    stamps = tuning.here()
    groups = tuning_file.read(path)
    listed = []
    for which in sorted(groups):
        mine = stamps.get(which.place)
        hard, soft = which.differs(mine) if mine else ([], [])
        entries = [{name: getattr(e, name) for name in e.__slots__} for _, e in sorted(groups[which].items())]
        used = not hard if mine else None
        listed.append(
            {"stamp": which._asdict(), "place": which.place, "used": used, "differs": hard + soft, "entries": entries}
        )
    described = {one: mine._asdict() for one, mine in stamps.items()}
    return {"file": str(path), "there": path.exists(), "stamps_here": described, "groups": listed}


def copy(source: Path, target: Path) -> dict[str, Any]:
    """Add the entries of one file to another; what is copied takes the place of what *target* has for the same problem."""
    counts = tuning_file.merge(target, _there(source), override=True)
    return {"from": str(source), "to": str(target), **counts._asdict()}


def clear(path: Path, stale: bool) -> dict[str, Any]:
    """Remove the entries of a file; *stale*: those alone that this machine is known not to use."""
    stamps = None
    if stale:
        mine = tuning.here()
        if not mine:
            text = "nothing is known to be stale: the native core, with which entries are compared, is not built"
            raise FileError([Diagnostic("", text, str(path), suggestion="run `msctx build` first")])
        stamps = {w for w in tuning_file.read(path) if w.place in mine and w.differs(mine[w.place])[0]}
    return {"file": str(path), "removed": tuning_file.remove(path, stamps)}


def _there(path: Path) -> Groups:
    if not path.exists():
        raise FileError(
            [Diagnostic("", "there is no such file", str(path), suggestion="performance makes one when it measures")]
        )
    return tuning_file.read(path)

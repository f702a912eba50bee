"""The tuning file for people: what it holds, which of it counts on this machine, and moving entries between files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msctx.errors import FileError, Problem
from msctx.native import tuning_file
from msctx.native.stamp import Stamp, stamp
from msctx.native.tuning_file import Groups


def place(file: str | None) -> Path:
    """The file that a command is about: the one named, that of the option ``tuning_file``, or the one in the cache."""
    if file is None:
        from msctx.run.config import read

        setting = read(None, ()).settings.get("tuning_file")
        file = setting.value if setting is not None else None
    return tuning_file.location(file)


def show(path: Path) -> dict[str, Any]:
    """What a file holds, a group for each stamp, and whether this machine uses it."""
    here = _here()
    groups = tuning_file.read(path)
    listed = [
        {
            "stamp": which._asdict(),
            "used": here is not None and not which.differs(here)[0],
            "differs": [] if here is None else [name for part in which.differs(here) for name in part],
            "entries": [{name: getattr(e, name) for name in e.__slots__} for _, e in sorted(groups[which].items())],
        }
        for which in sorted(groups)
    ]
    return {"file": str(path), "there": path.exists(), "stamp_here": here and here._asdict(), "groups": listed}


def copy(source: Path, target: Path) -> dict[str, Any]:
    """Add the entries of one file to another; what is copied takes the place of what *target* has for the same problem."""
    counts = tuning_file.merge(target, _there(source), override=True)
    return {"from": str(source), "to": str(target), **counts._asdict()}


def clear(path: Path, stale: bool) -> dict[str, Any]:
    """Remove the entries of a file; *stale*: those alone that this machine does not use."""
    stamps = None
    if stale:
        here = _here()
        if here is None:
            text = "nothing is known to be stale: the native core, with which entries are compared, is not built"
            raise FileError([Problem("", text, str(path), suggestion="run `msctx build` first")])
        stamps = {which for which in tuning_file.read(path) if which.differs(here)[0]}
    return {"file": str(path), "removed": tuning_file.remove(path, stamps)}


def _there(path: Path) -> Groups:
    if not path.exists():
        raise FileError([Problem("", "there is no such file", str(path), suggestion="performance makes one when it measures")])
    return tuning_file.read(path)


def _here() -> Stamp | None:
    """The stamp of this machine, where the native core is built."""
    from msctx.native import build, core

    return stamp(core.load()) if not build.obstacle() and build.cached() is not None else None

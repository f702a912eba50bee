"""Files that are written for a user, and never over another one."""

from __future__ import annotations

from pathlib import Path

from msctx.errors import Diagnostic, FileError


def write_new(path: Path, text: str) -> None:
    """Raises :class:`FileError` where a file is there already, or none can be written."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise FileError([Diagnostic("", "is there already; nothing was written: choose another name", str(path))]) from None
    except (OSError, ValueError) as error:  # ValueError: a path that no system takes
        raise FileError([unwritten(path, error)]) from None


def unwritten(path: Path, error: OSError | ValueError) -> Diagnostic:
    return Diagnostic("", f"cannot be written: {getattr(error, 'strerror', None) or error}", str(path))

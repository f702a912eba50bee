"""Files that processes keep for later ones: JSON for people and for git, of a format with a version, whole or not there."""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Predicate  # what pydantic's own constraints derive from, without its time to import
from filelock import FileLock, Timeout

from msctx import locks
from msctx.errors import Diagnostic, FileError
from msctx.options.documents import dotted, parse_json

if TYPE_CHECKING:
    from pydantic import TypeAdapter

PATIENCE = 10.0
"""Seconds to wait for another process that writes the same file."""

Text = Annotated[str, Predicate(str.isprintable)]  # no control characters


@dataclass(frozen=True)
class Format:
    """A kind of file.

    Attributes:
        name: its first line has it, with the version.
        major: another one is not read.
        minor: a higher one is read.
        document: the dataclass that a file holds.
        what: what such a file is, in words.
        aside: what to do with one that cannot be used.
        other: what to do where one cannot be read or written.
    """

    name: str
    major: int
    minor: int
    document: type
    what: str
    aside: str
    other: str

    @property
    def head(self) -> str:
        return f'"format": "{self.name} {self.major}.{self.minor}"'

    def read(self, path: Path) -> tuple[Any, int] | None:
        """The document of a file and the minor number of its version; ``None``: there is no such file.

        Raises:
            FileError: it cannot be read, or is of another kind.
        """
        with self.naming(path, "read"):
            try:
                if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe would be waited for
                    raise error(path, "is no regular file", self.aside)
                text = path.read_text(encoding="utf-8-sig")
            except FileNotFoundError:
                return None
            except UnicodeDecodeError as wrong:
                raise error(path, f"is not UTF-8 text (byte {wrong.start})", self.aside) from None
        return self.parse(text, str(path))

    def parse(self, text: str, file: str) -> tuple[Any, int]:
        """The document of a text. *file* is how places name it."""
        adapter = _adapter(self.document)
        from pydantic import ValidationError

        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            data = None
        name = data.get("format") if isinstance(data, dict) else None
        version = re.fullmatch(rf"{self.name} ([0-9]{{1,6}})\.([0-9]{{1,6}})", str(name))
        if version is None or int(version[1]) != self.major:
            why = f"{name} is a format that this msctx does not read" if version else f"this is no {self.what} of msctx"
            raise self._invalid(text, file, [(("format",), why)], self.head)
        try:
            return adapter.validate_json(text, strict=True), int(version[2])
        except ValidationError as wrong:
            found = wrong.errors(include_url=False)
            raise self._invalid(text, file, [(each["loc"], each["msg"]) for each in found]) from None

    def write(self, path: Path, text: str) -> None:
        """Whole or not at all; a link stays a link, and who may read it does not change."""
        path = path.resolve()
        part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        with self.naming(path, "written"):
            try:
                part.write_text(text, encoding="utf-8")
                if path.exists():
                    part.chmod(stat.S_IMODE(path.stat().st_mode))
                os.replace(part, path)
            finally:
                part.unlink(missing_ok=True)

    @contextmanager
    def locked(self, path: Path) -> Iterator[None]:
        """Be the only process that writes the file. The lock lies beside it: it holds for all machines that share the folder."""
        target = path.resolve()
        lock = FileLock(target.with_name(f".{target.name}.lock"), mode=0o600)
        with self.naming(path, "written"):
            os.close(os.open(lock.lock_file, os.O_RDWR | os.O_CREAT, 0o600))  # filelock waits where it cannot be made
            try:
                lock.acquire(timeout=PATIENCE)
            except Timeout:
                text = f"cannot be locked: {lock.lock_file} has been held by another process for {PATIENCE:.0f} seconds"
                raise error(path, text, f"end that process, or {self.other}") from None
            except NotImplementedError:
                raise error(path, "cannot be locked: its file system has no locks", self.other) from None
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def naming(self, path: Path, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as wrong:
            text = f"cannot be {what}: {wrong.strerror or wrong}"
            raise error(path, text, f"make that possible, or {self.other}") from None

    def _invalid(
        self, text: str, file: str, found: Sequence[tuple[tuple[str | int, ...], str]], allowed: str = ""
    ) -> FileError:
        """Every mistake at its place: of JSON, else what was *found* at paths of keys."""
        parsed = parse_json(text, file)
        wrong = [Diagnostic(dotted(path), why, allowed=allowed, mark=parsed.mark(path)) for path, why in found]
        *others, last = parsed.problems or wrong
        return FileError([*others, replace(last, text=f"{last.text}. The file is left as it is, and not used: {self.aside}")])


def error(path: Path, text: str, suggestion: str) -> FileError:
    return FileError([Diagnostic("", text, str(path), suggestion=suggestion)])


@cache
def _adapter(document: type) -> TypeAdapter[Any]:
    locks.imported("pydantic")
    from pydantic import TypeAdapter

    return TypeAdapter(document)

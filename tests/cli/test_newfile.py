"""Files written for a user."""

from __future__ import annotations

from pathlib import Path

import pytest

from msctx.cli.render import write_new
from msctx.errors import FileError


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    write_new(tmp_path / "a", "one")
    with pytest.raises(FileError, match="exists already; nothing was written"):
        write_new(tmp_path / "a", "two")
    assert (tmp_path / "a").read_text() == "one"


def test_what_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"nowhere.*cannot be written: No such file"):
        write_new(tmp_path / "nowhere" / "a", "one")

"""A folder for as long as a process lives: those of processes that were killed go, and no other."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from msctx.run import scratch

HOLDS = """
import sys, tempfile
from msctx.run import scratch
tempfile.tempdir = sys.argv[1]
with scratch.folder("msctx-run-") as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


@contextmanager
def other_process(where: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    command = [sys.executable, "-c", HOLDS, str(where)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
        process.kill()


@pytest.fixture
def where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_what_a_killed_process_has_left_goes(where: Path) -> None:
    with other_process(where) as (lives, stays), other_process(where) as (killed, goes):
        (goes / "run" / "attempt_0").mkdir(parents=True)
        killed.kill()
        killed.wait()
        with scratch.folder("msctx-run-") as mine:
            assert {*where.iterdir()} == {mine, stays}
        assert lives.poll() is None
        assert {*where.iterdir()} == {stays}


def test_what_no_process_has_held_stays(where: Path) -> None:
    """It may be of one that has just begun, or is not ours."""
    (where / "msctx-run-new").mkdir()
    (where / "msctx-run-link").symlink_to(where / "msctx-run-new")
    (where / "msctx-run-file").touch()
    with scratch.folder("msctx-run-"):
        pass
    assert {path.name for path in where.iterdir()} == {"msctx-run-new", "msctx-run-link", "msctx-run-file"}


def test_a_folder_of_another_user_stays(where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (where / "msctx-run-other").mkdir()
    (where / "msctx-run-other" / scratch.ALIVE).touch()
    user = scratch.os.getuid()
    monkeypatch.setattr(scratch.os, "getuid", lambda: user + 1)
    with scratch.folder("msctx-run-"):
        pass
    monkeypatch.undo()
    assert (where / "msctx-run-other").exists()


def test_a_file_system_without_locks(where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(path: Path) -> None:
        raise OSError

    monkeypatch.setattr(scratch.alive, "hold", no_locks)
    with scratch.folder("msctx-run-") as mine:
        assert mine.is_dir()
    assert not mine.exists()

"""msctx cache: show, export, import and clear; and where a cache is looked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from msctx.cli import main
from msctx.graph import cache
from msctx.graph.cache_stamp import stamp

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Run a command in an empty folder; returns (exit code, stdout, stderr)."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)

    def run(*words: Any) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(["cache", *map(str, words)])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return int(end.value.code or 0), out, err

    return run


def fill(root: Path) -> None:
    folder = cache.ready(root)
    (folder / "fxgraph" / "ab" / "fab").mkdir(parents=True)
    (folder / "fxgraph" / "ab" / "fab" / "entry").write_bytes(bytes(2**20))
    cache.mark(folder, {"msctx-precision-1"})


def test_a_cache_goes_from_one_folder_to_another(command: Command, tmp_path: Path) -> None:
    assert "nothing compiled is kept in it" in command("show")[1]
    fill(tmp_path / "kept" / "rank_0")
    code, out, _ = command("show", "--path", "kept")
    assert code == 0
    for part in ("used here", "1.0 MB", "msctx-precision-1", stamp().torch):
        assert part in out
    code, out, _ = command("export", "cache.zip", "--path", "kept", "--json")
    assert (code, json.loads(out)["files"]) == (0, 1)
    assert command("export", "cache.zip", "--path", "kept")[0] == 3, "never over another file"
    code, out, err = command("import", "cache.zip", "--path", "new", "--json")
    assert (code, json.loads(out)["files"]) == (0, 1)
    assert "it runs as you" in err
    (found,) = json.loads(command("show", "--path", "new", "--json")[1])["caches"]
    assert (found["graphs"], found["used_here"], found["policies"]) == (1, True, ["msctx-precision-1"])
    assert json.loads(command("clear", "--path", "new", "--stale", "--json")[1])["bytes_removed"] == 0
    assert json.loads(command("clear", "--path", "new", "--json")[1])["bytes_removed"] == 2**20
    (found,) = json.loads(command("show", "--path", "new", "--json")[1])["caches"]
    assert found["files"] == 0


@pytest.mark.parametrize(
    ("option", "inside"), [("COMPILE_CACHE_PATH", "rank_1"), ("SESSION__OP_COMPILER_CACHE_DIR", "kernel_cache")]
)
def test_the_folder_is_that_of_the_options(
    option: str, inside: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "kept" / inside)
    monkeypatch.setenv(f"MSCTX_{option}", str(tmp_path / "kept"))
    (found,) = json.loads(command("show", "--json")[1])["caches"]
    assert found["cache"] == str(tmp_path / "kept" / inside)


def test_a_refused_archive_ends_with_the_code_of_files(command: Command, tmp_path: Path) -> None:
    (tmp_path / "cache.zip").write_text("no archive")
    code, _, err = command("import", "cache.zip")
    assert code == 3
    assert "is refused" in err
    assert command("import", "missing.zip")[0] == 3
    assert command("export", "new.zip")[0] == 3

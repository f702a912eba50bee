"""op_cache.ini: how large a cache may become, and what goes first."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

import msctx
from msctx.graph import cache, cache_limit
from msctx.graph.cache_limit import MEGABYTE, Limit


def fill(folder: Path, *ages: int, size: int = MEGABYTE) -> list[Path]:
    """Files of a megabyte, last used so many minutes ago."""
    made = []
    for number, minutes in enumerate(ages):
        path = folder / f"{number:02d}" / f"code{number}.so"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(size))
        os.utime(path, (time.time() - 60 * minutes,) * 2)
        made.append(path)
    return made


def ini(path: Path, size: Any, ratio: Any) -> str:
    path.write_text(f"[op_compiler_cache]\nmax_op_cache_size={size}\nremain_cache_size_ratio={ratio}\n")
    return str(path)


def kept(made: list[Path]) -> list[int]:
    return [number for number, path in enumerate(made) if path.exists()]


@pytest.mark.parametrize("at_exit", [False, True])
@pytest.mark.parametrize("name", ["enable_compile_cache", "op_compiler_cache_mode"])
def test_what_was_idle_longest_goes_until_the_ratio_is_left(name: str, at_exit: bool, tmp_path: Path) -> None:
    limits = {"op_compiler_cache_dir.op_cache_ini": ini(tmp_path / "op_cache.ini", 4, 50)}
    folder = {"enable_compile_cache": "compile_cache_path", "op_compiler_cache_mode": "op_compiler_cache_dir"}[name]
    options = {name: True if name == "enable_compile_cache" else "enable", folder: str(tmp_path / "kept"), **limits}
    with msctx.context(**options):
        assert cache.current is not None
        place = cache.current.folder
        made = fill(place, 90, 300, 40, 200, 60, 100) if at_exit else []
    if not at_exit:
        made = fill(place, 90, 300, 40, 200, 60, 100)
        with msctx.context(**options):
            assert kept(made) == [2, 4]
    assert kept(made) == [2, 4]
    assert (place / cache.MARKER).exists()


def test_nothing_goes_below_the_limit_or_without_one(tmp_path: Path) -> None:
    made = fill(tmp_path, 90, 300)
    for limit in (Limit(2, 1), Limit(-1, 1)):
        assert cache_limit.keep_within([tmp_path], limit, frozenset()) == 0
    assert kept(made) == [0, 1]


def test_what_was_used_in_the_last_half_hour_stays(tmp_path: Path) -> None:
    made = fill(tmp_path, 25, 31, 1)
    assert cache_limit.keep_within([tmp_path], Limit(1, 1), frozenset()) == MEGABYTE
    assert kept(made) == [0, 2]


def test_what_cannot_be_removed_does_not_count_as_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = fill(tmp_path, 90, 80, 70)
    unlink = os.unlink

    def refused(path: Any, *args: Any, **kwargs: Any) -> None:
        if str(path) == str(made[0]):
            raise PermissionError(path)
        unlink(path, *args, **kwargs)

    monkeypatch.setattr(os, "unlink", refused)
    assert cache_limit.keep_within([tmp_path], Limit(2, 50), frozenset()) == 2 * MEGABYTE
    assert kept(made) == [0]


def test_what_a_process_has_loaded_counts_as_used(tmp_path: Path) -> None:
    """Under relatime reading alone is not noted for a day."""
    with msctx.context(enable_compile_cache=True, compile_cache_path=str(tmp_path)):
        assert cache.current is not None
        path = cache.current.folder / "module.py"
        path.write_text("value = 1\n")
        os.utime(path, (1, 1))
        import sys
        import types

        module = types.ModuleType("loaded_from_the_cache")
        module.__file__ = str(path)
        sys.modules[module.__name__] = module
    del sys.modules["loaded_from_the_cache"]
    assert path.stat().st_mtime > 1


def test_files_of_others_are_neither_counted_nor_removed(tmp_path: Path) -> None:
    limits = ini(tmp_path / "op_cache.ini", 1, 1)
    theirs = fill(tmp_path / "kernel_cache", 500, 500) if (tmp_path / "kernel_cache").mkdir() is None else []
    options = {"op_compiler_cache_dir": str(tmp_path), "op_compiler_cache_dir.op_cache_ini": limits}
    with msctx.context(**options):
        pass
    assert kept(theirs) == [0, 1]


# --- where the limits come from ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "ratio", "expected"),
    [("7", "20", Limit(7, 20)), ("-1", "", Limit(-1, 50)), ("", "30", Limit(500, 30)), ("", "", Limit(500, 50))],
)
def test_the_environment_is_what_counts_without_a_file(
    size: str, ratio: str, expected: Limit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cache_limit.SIZE, size)
    monkeypatch.setenv(cache_limit.RATIO, ratio)
    assert cache_limit.found(tmp_path) == expected
    cache_limit.write_ini(tmp_path)
    assert cache_limit.found(tmp_path) == expected, "as it is left for people, the file sets nothing"
    ini(tmp_path / "op_cache.ini", 9, 10)
    assert cache_limit.found(tmp_path) == Limit(9, 10)


@pytest.mark.parametrize(("size", "ratio"), [("0", "50"), ("7", "0"), ("7", "101"), ("x", "50"), ("-2", "50"), ("--5", "50")])
def test_both_numbers_count_or_neither(size: str, ratio: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache_limit.SIZE, size)
    monkeypatch.setenv(cache_limit.RATIO, ratio)
    with pytest.warns(msctx.MsctxWarning, match=f"{cache_limit.SIZE}={size}.*ignored"):
        assert cache_limit.found(tmp_path) == Limit()
    monkeypatch.delenv(cache_limit.SIZE)
    monkeypatch.delenv(cache_limit.RATIO)
    ini(tmp_path / "op_cache.ini", size, ratio)
    with pytest.warns(msctx.MsctxWarning, match=r"ignored, both(.|\n)*op_cache.ini:[23]:"):
        assert cache_limit.found(tmp_path) == Limit()

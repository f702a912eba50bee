"""What is in the cache is not trusted blindly, and what nobody uses is removed from it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from builds import ISAS, call, edit, leftovers, made

from msctx.native import artifacts


def truncate(path):
    path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize("damage", [truncate, Path.unlink])
def test_a_damaged_build_is_built_again(sources, watched, forked, damage):
    path = made(sources).path
    for damaged in (path, path.with_suffix(".json")):
        damage(damaged)
        again = made(sources)
        assert (again.path, again.cached) == (path, False), damaged
    assert len(watched.compiled) == ISAS + 1
    assert forked(lambda: call(path)).ended() == {"returned": 41}
    assert made(sources).cached


def test_what_nobody_uses_is_removed(cache, sources):
    old = made(sources)
    edit(sources, "include/msctx/number.h", "40", "41")
    kept = made(sources)
    ago = time.time() - 31 * 86400
    (cache / "build" / "0123").mkdir()
    for path in [*cache.glob(f"native/{old.path.stem}.*"), cache / "build" / "0123"]:
        os.utime(path, (ago, ago))
    edit(sources, "include/msctx/number.h", "41", "42")
    new = made(sources)
    assert not [path for path in cache.glob(f"native/{old.path.stem}.*") if path.suffix != ".lock"]
    assert not (cache / "build" / "0123").exists()
    assert made(sources).path == new.path
    assert kept.path.exists()
    assert leftovers(cache) == []


def test_remove(cache, sources):
    assert artifacts.remove() == 0
    assert not cache.exists()
    made(sources)
    assert artifacts.remove() > 1000
    assert [path for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"] == []
    assert not made(sources).cached

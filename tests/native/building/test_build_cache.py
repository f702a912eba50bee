"""What is in the cache is not trusted blindly, and what nobody uses is removed from it."""

from __future__ import annotations

import os
import time

from builds import edit, leftovers, made

from msctx.native import cachedir


def test_what_nobody_uses_is_removed(cache, sources):
    old = made()
    edit(sources, "include/msctx/number.h", "40", "41")
    kept = made()
    ago = time.time() - 31 * 86400
    (cache / "build" / "0123").mkdir()
    for path in [*cache.glob(f"native/{old.stem}.*"), cache / "build" / "0123"]:
        os.utime(path, (ago, ago))
    edit(sources, "include/msctx/number.h", "41", "42")
    new = made()
    assert not [path for path in cache.glob(f"native/{old.stem}.*") if path.suffix != ".lock"]
    assert not (cache / "build" / "0123").exists()
    assert made() == new
    assert kept.exists()
    assert leftovers(cache) == []


def test_remove(cache, sources):
    assert cachedir.remove() == 0
    assert not cache.exists()
    made()
    assert cachedir.remove() > 1000
    assert [path for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"] == []
    assert made().exists()

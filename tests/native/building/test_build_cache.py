"""What is in the cache is not trusted blindly, and what nobody uses is removed from it."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest
from builds import ISAS, call, edit, leftovers, made

from msctx.errors import NativeError
from msctx.native import artifacts


def truncate(path):
    path.write_bytes(path.read_bytes()[:100])


def alter(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def replace_by_symlink(path):
    path.rename(path.with_name("other"))
    path.symlink_to("other")


@pytest.mark.parametrize("damage", [truncate, alter, Path.unlink, replace_by_symlink])
def test_a_damaged_build_is_built_again(sources, forked, damage):
    path = made(sources).path
    for damaged in (path, path.with_suffix(".json")):
        damage(damaged)
        again = made(sources)
        assert (again.path, again.cached, again.reused) == (path, False, ISAS + 1), damaged
    assert forked(lambda: call(path)).ended() == {"returned": 41}
    assert made(sources).cached


def test_a_note_that_is_something_else(sources):
    for text in ("", "[]", "null", "{}", '{"sha256": 1}', "\x00\xff"):
        made(sources).path.with_suffix(".json").write_text(text, encoding="latin-1")
        assert not made(sources).cached, text


def test_a_damaged_object_is_compiled_again(cache, sources, forked):
    path = made(sources).path
    for damage, file in zip([truncate, alter], sorted(cache.glob("objects/*.o"))[:2], strict=True):
        damage(file)
    path.unlink()
    assert made(sources).compiled == 2
    assert forked(lambda: call(path)).ended() == {"returned": 41}


def test_what_others_can_write_is_refused(cache, sources):
    path = made(sources).path
    for target in (path, path.parent, cache, path.with_suffix(".json")):
        target.chmod(0o777)
        text = f"{target}: can be written by its group and everybody, .*; run `chmod go-w {target}`"
        with pytest.raises(NativeError, match=text):
            made(sources)
        target.chmod(0o700)
        assert made(sources).cached


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_library_of_somebody_else_is_refused(sources):
    path = made(sources).path
    os.chown(path, 65534, 65534)
    with pytest.raises(NativeError, match="belongs to"):
        made(sources)


@pytest.mark.parametrize("mask", [0, 0o777])
def test_any_umask(cache, sources, umask, mask):
    umask(mask)
    made(sources)
    assert made(sources).cached
    modes = {stat.S_IMODE(path.stat().st_mode) for path in cache.rglob("*") if path.is_file()}
    assert modes == {0o600}


def read_only(cache, monkeypatch):
    """Nothing in the cache can be written, not even by root."""

    def refuse(*args, **more):
        raise OSError(30, "Read-only file system", str(cache))

    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode, **more: not mode & os.W_OK and access(path, mode, **more))
    for name in ("mkdir", "utime", "replace", "chmod"):
        monkeypatch.setattr(os, name, refuse)


def test_a_read_only_cache_is_good_to_load_from(cache, sources, monkeypatch):
    made(sources)
    read_only(cache, monkeypatch)
    assert made(sources).cached
    edit(sources, "common/api.cpp", "return", "return 1 +")
    with pytest.raises(NativeError, match=f"{cache}: cannot be written; set MSCTX_CACHE_DIR"):
        made(sources)


def test_what_nobody_uses_is_removed(cache, sources):
    old = made(sources)
    edit(sources, "include/msctx/number.h", "40", "41")
    kept = made(sources)
    ago = time.time() - 31 * 86400
    for path in [*cache.glob(f"native/{old.path.stem}.*"), *cache.glob("objects/*")]:
        os.utime(path, (ago, ago))
    (cache / "tmp" / "0123.killed").mkdir()
    (cache / "tmp" / "0123.lock").touch()
    edit(sources, "include/msctx/number.h", "41", "42")
    new = made(sources)
    assert not [*cache.glob(f"native/{old.path.stem}.*")]
    assert made(sources).path == new.path
    assert kept.path.exists()
    assert len([*cache.glob("objects/*.o")]) == ISAS + 1
    assert leftovers(cache) == []


def test_remove(cache, sources):
    assert artifacts.remove() == 0
    assert not cache.exists()
    made(sources)
    assert artifacts.remove() > 1000
    assert [path for path in cache.rglob("*") if path.is_file()] == []
    assert not made(sources).cached


def test_remove_waits_for_a_build_in_progress(sources, watched, forked):
    watched.hold("common/api.cpp")
    builder = forked(lambda: made(sources).path)
    watched.until_stopped()
    remover = forked(artifacts.remove)
    time.sleep(0.2)
    assert remover.process.is_alive()
    watched.let_go()
    assert "returned" in builder.ended()
    assert "returned" in remover.ended()
    assert not made(sources).cached

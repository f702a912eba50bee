"""The cache folder: made for the user alone, and refused where anybody else could have written."""

import os
import stat

import pytest

from msctx.errors import NativeError
from msctx.native import cachedir

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away, or become somebody else")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def refuses(*words):
    """Every way in refuses, with a message that says which path, why and what to do."""
    texts = set()
    for enter in (cachedir.folder, lambda: cachedir.check(cachedir.location()), cachedir.usable):
        with pytest.raises(NativeError) as caught:
            enter()
        texts.add(str(caught.value))
    assert len(texts) == 1
    text = texts.pop()
    assert "MSCTX_CACHE_DIR" in text
    assert [word for word in words if str(word) not in text] == []


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MSCTX_CACHE_DIR", "~/mine")
    assert cachedir.location() == tmp_path / "mine"
    monkeypatch.setenv("MSCTX_CACHE_DIR", "cache")
    with pytest.raises(NativeError, match="cache: is not an absolute path; set MSCTX_CACHE_DIR"):
        cachedir.folder()
    monkeypatch.delenv("MSCTX_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cachedir.location() == tmp_path / "msctx"


@pytest.mark.parametrize("mask", [0, 0o022])
def test_it_is_made_for_the_user_alone(cache, umask, mask):
    umask(mask)
    cachedir.check(cachedir.location())
    cachedir.usable()
    assert not cache.exists(), "looking makes nothing"
    made = cachedir.folder("native", "key")
    assert made == cache / "native" / "key"
    assert mode(cache) == 0o700
    cachedir.write(made / "file", b"x")
    assert mode(made / "file") == 0o600
    cache.chmod(0o755)  # what others can read becomes the user's alone
    cachedir.check(cache)
    assert mode(cache) == 0o755
    assert cachedir.folder() == cache
    assert mode(cache) == 0o700


def test_a_folder_that_others_can_write_is_refused_and_a_file_in_the_way(cache):
    cache.mkdir()
    for bits in (0o777, 0o770, 0o702):
        cache.chmod(bits)
        refuses(f"{cache}: can be written by others,", "delete it, or set")
    cache.rmdir()
    cache.write_text("")
    with pytest.raises(NativeError, match="File exists; set MSCTX_CACHE_DIR"):
        cachedir.folder()


@as_root
def test_a_folder_of_somebody_else(cache):
    cache.mkdir()
    os.chown(cache, NOBODY, NOBODY)
    refuses(f"{cache}: belongs to another user", "delete it, or set")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder(cache):
    cache.mkdir(mode=0o500)
    with pytest.raises(NativeError, match="cannot be written; set MSCTX_CACHE_DIR"):
        cachedir.usable()
    with pytest.raises(NativeError, match="Permission denied; set MSCTX_CACHE_DIR"):
        cachedir.folder("native")

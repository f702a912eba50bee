"""A cache as one file: whole and of this machine, or refused with the reason."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

import msctx
from msctx.errors import FileError
from msctx.graph import cache, cache_archive, cache_stamp
from msctx.graph.cache_archive import MANIFEST
from msctx.graph.cache_stamp import stamp

FILES = {"ab/cabc.main.so": b"library" * 1000, "fxgraph/cd/fcd/entry": b"pickle", "aotautograd/aef/entry": b"another"}
IGNORED = ("locks/cabc.lock", "fxgraph/cd/fcd/.1.2.tmp")


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A cache with files in it, which are of no use."""
    path = tmp_path / "kept"
    folder = cache.ready(path / "rank_0")
    for name in (*FILES, *IGNORED):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(FILES.get(name, b""))
    cache.mark(folder, {"msctx-precision-1"})
    return path


@pytest.fixture
def archive(kept: Path, tmp_path: Path) -> Path:
    cache_archive.export(kept, tmp_path / "archive.zip")
    return tmp_path / "archive.zip"


def import_(archive: Path, path: Path) -> dict[str, Any]:
    said: list[str] = []
    found = cache_archive.import_(archive, path, said.append)
    assert "it runs as you" in said[0]
    return found | {"said": said[1:]}


def held(path: Path) -> dict[str, bytes]:
    folder = path / "rank_0" / stamp().name
    found = [one for one in folder.rglob("*") if one.is_file() and one.name != cache.MARKER]
    return {one.relative_to(folder).as_posix(): one.read_bytes() for one in found}


def test_what_is_exported_is_imported(archive: Path, tmp_path: Path) -> None:
    assert import_(archive, tmp_path / "new") | {"said": 0} == {
        "file": str(archive),
        "to": str(tmp_path / "new"),
        "files": 3,
        "there already": 0,
        "policies": ["msctx-precision-1"],
        "said": 0,
    }
    assert held(tmp_path / "new") == FILES
    assert (cache.marked(tmp_path / "new" / "rank_0" / stamp().name) or {})["policies"] == ["msctx-precision-1"]
    assert [*(tmp_path / "new").iterdir()] == [tmp_path / "new" / "rank_0"]
    assert import_(archive, tmp_path / "new")["there already"] == 3


def test_what_is_there_stays(archive: Path, tmp_path: Path) -> None:
    import_(archive, tmp_path / "new")
    place = tmp_path / "new" / "rank_0" / stamp().name / "fxgraph/cd/fcd/entry"
    place.write_bytes(b"mine")
    import_(archive, tmp_path / "new")
    assert place.read_bytes() == b"mine"


def test_only_what_this_machine_uses_is_exported(kept: Path, tmp_path: Path) -> None:
    (kept / "rank_0" / stamp().name).rename(kept / "rank_0" / "another")
    found = json.loads((kept / "rank_0" / "another" / cache.MARKER).read_text())
    found["stamp"]["processor"] = "another"
    (kept / "rank_0" / "another" / cache.MARKER).write_text(json.dumps(found))
    (listed,) = cache_archive.contents(kept)["caches"]
    assert not listed["used_here"]
    assert "was another" in listed["differs"][0]
    with pytest.raises(FileError, match="nothing compiled"):
        cache_archive.export(kept, tmp_path / "archive.zip")
    assert not (tmp_path / "archive.zip").exists()
    assert cache_archive.clear(kept, stale=True)["bytes_removed"] > 0


def test_nothing_of_the_environment_is_in_it(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSCTX_TEST_SECRET", "a-secret-of-the-environment")
    cache_archive.export(kept, tmp_path / "archive.zip")
    with zipfile.ZipFile(tmp_path / "archive.zip") as file:
        text = file.read(MANIFEST).decode()
    assert not [n for n, v in os.environ.items() if len(v) > 8 and v in text]
    assert str(tmp_path) not in text


def remade(archive: Path, change: Callable[[dict[str, Any], dict[str, bytes]], None]) -> None:
    """The archive with another manifest, or other files."""
    with zipfile.ZipFile(archive) as file:
        files = {name: file.read(name) for name in file.namelist()}
    about = json.loads(files.pop(MANIFEST))
    change(about, files)
    with zipfile.ZipFile(archive, "w") as file:
        for name, data in {**files, MANIFEST: json.dumps(about).encode()}.items():
            file.writestr(name, data)


def truncated(archive: Path) -> None:
    archive.write_bytes(archive.read_bytes()[:-100])


def flipped(archive: Path) -> None:
    data = bytearray(archive.read_bytes())
    data[60] ^= 1
    archive.write_bytes(data)


def damaged_manifest(archive: Path) -> None:
    """Its compressed data begins with a block of no type that there is."""
    with zipfile.ZipFile(archive) as file:
        start = file.getinfo(MANIFEST).header_offset
    data = bytearray(archive.read_bytes())
    data[start + 30 + len(MANIFEST)] = 0x07
    archive.write_bytes(data)


def encrypted(archive: Path) -> None:
    """As the flags of its first file say."""
    data = bytearray(archive.read_bytes())
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    archive.write_bytes(data)


def no_archive(archive: Path) -> None:
    archive.write_text("text")


def another_zip(archive: Path) -> None:
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("readme", "text")


def planted(archive: Path) -> None:
    with zipfile.ZipFile(archive, "a") as file:
        file.writestr("rank_0/zz/planted.so", b"planted")


def replaced(archive: Path) -> None:
    remade(archive, lambda about, files: files.update({"rank_0/ab/cabc.main.so": b"planted" * 1000}))


def longer(archive: Path) -> None:
    remade(archive, lambda about, files: files.update({"rank_0/ab/cabc.main.so": b"planted" * 1001}))


def missing(archive: Path) -> None:
    remade(archive, lambda about, files: files.pop("rank_0/ab/cabc.main.so") and None)


def newer(archive: Path) -> None:
    remade(archive, lambda about, files: about.update(format="msctx compile cache archive 2.0"))


def foreign(archive: Path) -> None:
    other = replace(stamp(), processor="Processor 9", flags=f"{stamp().flags} amx_tile_of_tests", torch="2.1.0")
    remade(archive, lambda about, files: about.update(stamp=asdict(other)))


def _renamed(name: str) -> Callable[[Path], None]:
    def change(about: dict[str, Any], files: dict[str, bytes]) -> None:
        for place in (about["files"], files):
            place[name] = place.pop("rank_0/ab/cabc.main.so")

    return lambda archive: remade(archive, change)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (truncated, "truncated"),
        (flipped, "damaged|checksum"),
        (damaged_manifest, "no manifest.json that can be read"),
        (encrypted, "is damaged .*encrypted"),
        (no_archive, "no archive of"),
        (another_zip, "no manifest.json"),
        (planted, "not those of its manifest"),
        (replaced, "its checksum differs"),
        (longer, "larger than its manifest"),
        (missing, "not those of its manifest"),
        (newer, "its format is msctx compile cache archive 2.0"),
        (foreign, r"torch is .* was 2\.1\.0; processor is .*Processor 9; this processor has no amx_tile_of_tests"),
        (_renamed("rank_0/../../outside.so"), "no name of a file"),
        (_renamed("/tmp/outside.so"), "no name of a file"),
        (_renamed(f"rank_0/{cache.LOCK}"), "no name of a file"),
    ],
)
def test_anything_else_is_refused_and_nothing_is_left(
    spoil: Callable[[Path], None], why: str, archive: Path, tmp_path: Path
) -> None:
    spoil(archive)
    with pytest.raises(FileError, match=why) as refused:
        import_(archive, tmp_path / "new")
    assert "Nothing was unpacked" in str(refused.value)
    assert [one for one in (tmp_path / "new").rglob("*") if one.is_file()] == []


def test_it_is_not_unpacked_where_others_can_write(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(FileError, match="can be written by its group and everybody"):
        import_(archive, tmp_path / "open")
    (tmp_path / "open").chmod(0o1777)
    import_(archive, tmp_path / "open")
    assert held(tmp_path / "open") == FILES
    assert [one.name for one in (tmp_path / "open").iterdir()] == ["rank_0"]


def test_one_cache_that_cannot_be_used_leaves_the_others_as_they_are(kept: Path, tmp_path: Path) -> None:
    other = cache.ready(kept / "rank_1")
    (other / "entry").write_bytes(b"another")
    cache_archive.export(kept, tmp_path / "archive.zip")
    (tmp_path / "new" / "rank_1").mkdir(parents=True)
    (tmp_path / "new" / "rank_1").chmod(0o777)
    with pytest.raises(FileError, match="rank_1: can be written"):
        import_(tmp_path / "archive.zip", tmp_path / "new")
    assert held(tmp_path / "new") == {}


@pytest.mark.parametrize(
    ("change", "why"),
    [({"format": "msctx compile cache 2"}, "its format is msctx compile cache 2"), ({"policies": [[1]]}, "is damaged")],
)
def test_what_loading_refuses_is_not_used_here_and_not_exported(
    change: dict[str, Any], why: str, kept: Path, tmp_path: Path
) -> None:
    marker = kept / "rank_0" / stamp().name / cache.MARKER
    marker.write_text(json.dumps(json.loads(marker.read_text()) | change))
    (listed,) = cache_archive.contents(kept)["caches"]
    assert not listed["used_here"]
    assert why in listed["differs"][0]
    with pytest.raises(FileError, match="nothing compiled"):
        cache_archive.export(kept, tmp_path / "archive.zip")
    assert cache_archive.clear(kept, stale=True)["bytes_removed"] > 0


def test_what_others_could_have_planted_is_not_exported(kept: Path, tmp_path: Path) -> None:
    (kept / "rank_0" / stamp().name).chmod(0o777)
    with pytest.raises(FileError, match="can be written by its group and everybody"):
        cache_archive.export(kept, tmp_path / "archive.zip")
    assert not (tmp_path / "archive.zip").exists()


def test_torch_elsewhere_is_told(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_stamp, "place", lambda: "elsewhere")
    (said,) = import_(archive, tmp_path / "new")["said"]
    assert "compiled once more" in said


@pytest.mark.full
def test_an_imported_cache_compiles_nothing(passes: Callable[..., str], tmp_path: Path) -> None:
    def run(path: str) -> dict[str, int]:
        code = f"""
        import json, msctx, torch
        from torch._dynamo.utils import counters
        with msctx.context(enable_compile_cache=True, compile_cache_path={str(tmp_path / path)!r}):
            torch.compile(lambda x: x.sin() + 1)(torch.ones(64))
        print(json.dumps(counters["inductor"]))
        """
        found: dict[str, int] = json.loads(passes(code, timeout=240).splitlines()[-1])
        return found

    assert run("first")["fxgraph_cache_miss"] == 1
    cache_archive.export(tmp_path / "first", tmp_path / "archive.zip")
    import_(tmp_path / "archive.zip", tmp_path / "second")
    before = held(tmp_path / "second")
    assert run("second")["fxgraph_cache_hit"] == 1
    made = {name for name in held(tmp_path / "second") if name not in before}
    assert [name for name in made if name.endswith((".so", ".cpp"))] == []
    assert msctx.__version__ == stamp().msctx

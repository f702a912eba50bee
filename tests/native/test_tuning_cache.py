"""The tuning file: its text, several writers, and files that are broken, foreign or cannot be written."""

from __future__ import annotations

import os
import random
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import tuned
from filelock import FileLock, Timeout
from torch.nn import functional as fn

import msctx
from msctx.errors import FileError
from msctx.native import tuning_file
from msctx.native.environment_key import Stamp

ROOT = Path(__file__).parents[2]
STAMP = Stamp("Processor 9", "avx2 fma", "avx2", "2.13.0 AVX2", "0123456789abcdef", "c++ 12", "0.1.0")
ENTRIES = [
    tuned.entry(f"1x{i}x8x8 * 4x{i}x3x3, float32, channels_first", direction=d, threads=2) for i in range(3) for d in "ab"
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tuning.json"


# --- its text ---------------------------------------------------------------------------------------------------------


def test_the_same_entries_give_the_same_text_in_any_order() -> None:
    shuffled = random.Random(0).sample(ENTRIES, len(ENTRIES))
    other = replace(STAMP, isa="avx512")
    a = {STAMP: {e.key: e for e in ENTRIES}, other: {e.key: e for e in ENTRIES[:2]}}
    b = {other: {e.key: e for e in reversed(ENTRIES[:2])}, STAMP: {e.key: e for e in shuffled}}
    text = tuning_file.text_of(a)
    assert text == tuning_file.text_of(b)
    assert tuning_file.parse(text, "tuning.json") == (a, tuning_file.MINOR)


def test_it_is_read_by_people_line_by_line() -> None:
    lines = tuning_file.text_of(tuned.groups(*ENTRIES, stamp=STAMP)).splitlines()
    assert sum("problem" in line for line in lines) == len(ENTRIES)
    assert [line.strip() for line in lines if '"cpu"' in line] == ['"cpu": "Processor 9",']


def test_nothing_in_it_is_a_place_on_this_machine(own_tuning_file: Path) -> None:
    with msctx.context(conv_fprop_algo="performance"):
        fn.conv2d(torch.ones(1, 2, 5, 5), torch.ones(2, 2, 3, 3))
    text = own_tuning_file.read_text()
    assert "problem" in text
    assert "/" not in text


# --- writers ----------------------------------------------------------------------------------------------------------


def test_a_merge_adds_and_leaves_what_is_there_unless_it_is_to_win(path: Path) -> None:
    old, new = tuned.entry("p", "direct"), tuned.entry("p", "gemm")
    assert tuning_file.merge(path, tuned.groups(old, stamp=STAMP), override=False) == (1, 0, 0)
    text = path.read_bytes()
    assert tuning_file.merge(path, tuned.groups(new, stamp=STAMP), override=False) == (0, 0, 1)
    assert path.read_bytes() == text
    assert tuning_file.merge(path, tuned.groups(new, tuned.entry("q"), stamp=STAMP), override=True) == (1, 1, 0)
    assert {e.problem: e.ran for e in tuned.entries(path)} == {"p": "gemm", "q": "direct"}


def test_writers_at_once_lose_nothing(path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from msctx.native import tuning_file
from msctx.native.environment_key import Stamp
from msctx.native.tuning_file import Entry
for i in range(20):
    e = Entry("fprop", f"problem {{sys.argv[1]}} {{i}}", 1, "strict", "torch", "torch", {{"torch": 1.0}}, "now")
    tuning_file.merge(Path({str(path)!r}), {{{STAMP!r}: {{e.key: e}}}}, override=False)
"""
    writers = [subprocess.Popen([sys.executable, "-c", code, str(i)], cwd=ROOT) for i in range(3)]
    assert [writer.wait(timeout=100) for writer in writers] == [0] * 3
    assert {e.problem for e in tuned.entries(path)} == {f"problem {i} {j}" for i in range(3) for j in range(20)}
    assert not list(path.parent.glob("*.part"))


def test_a_link_stays_a_link_and_the_rights_stay(path: Path, tmp_path: Path) -> None:
    tuning_file.merge(path, tuned.groups(ENTRIES[0], stamp=STAMP), override=False)
    path.chmod(0o640)
    link = tmp_path / "link.json"
    link.symlink_to(path)
    tuning_file.merge(link, tuned.groups(ENTRIES[1], stamp=STAMP), override=False)
    assert link.is_symlink()
    assert len(tuned.entries(path)) == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize(
    ("why", "reported"),
    [
        (Timeout("held"), "has been held by another process for 10 seconds.*end that process"),
        (NotImplementedError("no flock"), "its file system has no locks.*name another file"),
    ],
    ids=["held", "no-locks"],
)
def test_why_it_cannot_be_locked_is_reported(
    path: Path, monkeypatch: pytest.MonkeyPatch, why: Exception, reported: str
) -> None:
    def acquire(lock: FileLock, timeout: float) -> None:
        raise why

    monkeypatch.setattr(FileLock, "acquire", acquire)
    with pytest.raises(FileError, match=f"cannot be locked: .*(?s:{reported})"):
        tuning_file.merge(path, tuned.groups(ENTRIES[0], stamp=STAMP), override=False)
    assert not path.exists()


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a folder in which nobody can make a file")
def test_a_lock_that_cannot_be_made_is_not_waited_for() -> None:
    start = time.monotonic()
    with pytest.raises(FileError, match="cannot be written: No such file or directory"):
        tuning_file.merge(Path("/proc/x.json"), tuned.groups(ENTRIES[0], stamp=STAMP), override=False)
    assert time.monotonic() - start < 5


def test_what_is_removed(path: Path) -> None:
    other = replace(STAMP, cpu="another")
    tuning_file.merge(path, tuned.groups(*ENTRIES, stamp=STAMP) | tuned.groups(ENTRIES[0], stamp=other), override=False)
    assert tuning_file.remove(path, {other}) == 1
    assert len(tuned.entries(path)) == len(ENTRIES)
    assert tuning_file.remove(path) == len(ENTRIES)
    assert not path.exists()
    assert tuning_file.remove(path) == 0


# --- what is wrong with it --------------------------------------------------------------------------------------------

GOOD = tuning_file.text_of(tuned.groups(tuned.entry("p", threads=1), stamp=STAMP))
BROKEN = {
    "cut off": (GOOD[:200], ":10:9", "this is not JSON"),
    "empty": ("", ":1:1", "Expecting value"),
    "foreign": ('{"name": "x"}', ":1:1", "this is no tuning file of msctx"),
    "a list": ("[1]", ":1:1", "this is no tuning file of msctx"),
    "of another format": (GOOD.replace("tuning 1.0", "tuning 2.0"), ":2:13", "2.0 is a format that this msctx does not read"),
    "of a format that is no number": (GOOD.replace("1.0", "1." + "9" * 5000), ":2:13", "this is no tuning file of msctx"),
    "no groups": ('{"format": "msctx tuning 1.0"}', ":1:1", "groups: Field required"),
    "no stamp": (GOOD.replace('"isa"', '"isb"'), ":5:16", "isa: Field required"),
    "threads": (GOOD.replace('"threads": 1', '"threads": "1"'), ":15:", "threads: Input should be a valid integer"),
    "ratio": (GOOD.replace('"torch": 2.0', '"torch": -2.0'), ":15:", "torch: Input should be greater than 0"),
    "control": (GOOD.replace('"problem": "p"', '"problem": "p\\u0000"'), ":15:", "problem: Predicate"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_file_is_reported_with_its_place_and_left_alone(broken: str, path: Path) -> None:
    text, place, message = BROKEN[broken]
    path.write_text(text)
    for act in (
        lambda: tuning_file.read(path),
        lambda: tuning_file.merge(path, tuned.groups(ENTRIES[0], stamp=STAMP), override=True),
        lambda: tuning_file.remove(path),
    ):
        with pytest.raises(FileError) as raised:
            act()
        for part in (f"{path}{place}", message, "left as it is", "name another file with tuning_file"):
            assert part in str(raised.value)
    assert path.read_text() == text


def test_all_mistakes_are_reported_at_once(path: Path) -> None:
    path.write_text(GOOD.replace('"isa"', '"isb"').replace('"threads": 1', '"threads": 0'))
    with pytest.raises(FileError, match=r"(?s):5:16  .*isa: Field required.*:15:\d+  .*threads: Input should be greater"):
        tuning_file.read(path)


def test_a_newer_file_is_read_and_not_written(path: Path) -> None:
    path.write_text(GOOD.replace("tuning 1.0", "tuning 1.7").replace('"when"', '"mood": "good", "when"'))
    text = path.read_bytes()
    assert [e.problem for e in tuned.entries(path)] == ["p"]
    with pytest.raises(FileError, match="newer msctx"):
        tuning_file.merge(path, tuned.groups(ENTRIES[0], stamp=STAMP), override=True)
    assert path.read_bytes() == text


def _run(**options: object) -> str:
    with msctx.context(conv_fprop_algo="performance", **options) as ctx:
        fn.conv2d(torch.ones(1, 2, 5, 6), torch.ones(2, 2, 3, 3))
    return str(ctx.choices()[0].reasons[0])


def test_a_broken_file_in_a_context_is_reported_once_and_the_context_goes_on(
    path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    path.write_text("{")
    for _ in range(2):
        assert _run(tuning_file=path) == "measured in this process"
    (warning,) = [str(w.message) for w in recwarn if issubclass(w.category, msctx.MsctxWarning)]
    assert warning.startswith(f"the tuning file is not used: {path}:1:2  this is not JSON")
    assert path.read_text() == "{"


NOWHERE = "/sys/tuning.json"
"""Where nobody can write, root included."""


def test_what_cannot_be_written_is_reported_once(recwarn: pytest.WarningsRecorder) -> None:
    for _ in range(2):
        _run(tuning_file=NOWHERE)
    (warning,) = [str(w.message) for w in recwarn if issubclass(w.category, msctx.MsctxWarning)]
    assert warning.startswith(f"what was measured is not kept: {NOWHERE}  cannot be written: ")


def test_warnings_as_errors_are_raised_at_entry_and_at_exit_once_all_is_put_back(
    passes: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "broken.json").write_text("{")
    passes(
        f"""
        import warnings, torch, msctx
        warnings.simplefilter("error", msctx.MsctxWarning)
        def run(path):
            with msctx.context(conv_fprop_algo="performance", tuning_file=path):
                torch.conv2d(torch.ones(1, 2, 5, 6), torch.ones(2, 2, 3, 3))
        try:
            run({str(tmp_path / "broken.json")!r})
        except msctx.MsctxWarning as warning:
            assert "is not used" in str(warning)
        else:
            raise AssertionError
        before = msctx.state()
        try:
            run({NOWHERE!r})
        except msctx.MsctxWarning as warning:
            assert "is not kept" in str(warning)
        else:
            raise AssertionError
        assert msctx.state() == before
        """
    )

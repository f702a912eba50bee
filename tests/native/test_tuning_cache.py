"""The tuning file: its text, several writers, and files that are broken, foreign or cannot be written."""

import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import tuned
from torch.nn import functional as fn

import msctx
from msctx.errors import FileError
from msctx.native import core, tuning_file
from msctx.native.cuda import compiled_kernels
from msctx.native.tuning_file import Stamp, stamp

ROOT = Path(__file__).parents[2]
STAMP = Stamp("Processor 9", "avx2 fma", "avx2", "2.13.0 AVX2", "0123456789abcdef")
ENTRIES = [
    tuned.entry(f"1x{i}x8x8 * 4x{i}x3x3, float32, channels_first", direction=d, threads=2) for i in range(3) for d in "ab"
]
NOWHERE = "/sys/tuning.json"
"""Where nobody can write, root included."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tuning.json"


def test_the_same_entries_give_the_same_text_in_any_order_with_an_entry_a_line(path: Path) -> None:
    shuffled = random.Random(0).sample(ENTRIES, len(ENTRIES))
    other = replace(STAMP, isa="avx512")
    a = {STAMP: {e.key: e for e in ENTRIES}, other: {e.key: e for e in ENTRIES[:2]}}
    b = {other: {e.key: e for e in reversed(ENTRIES[:2])}, STAMP: {e.key: e for e in shuffled}}
    path.write_text(text := tuning_file.text_of(a))
    assert text == tuning_file.text_of(b)
    assert tuning_file.read(path) == a
    assert sum("problem" in line for line in text.splitlines()) == len(ENTRIES) + 2


def test_a_result_stays_and_replaces_what_was_only_recorded(path: Path) -> None:
    for entry in (tuned.entry("p", "direct"), tuned.entry("p", "gemm"), tuned.entry("q", ""), tuned.entry("q", "fft")):
        tuning_file.merge(path, tuned.groups(entry, stamp=STAMP))
    tuning_file.merge(path, tuned.groups(tuned.entry("q", ""), stamp=STAMP))
    assert {e.problem: e.ran for e in tuned.entries(path)} == {"p": "direct", "q": "fft"}


def test_writers_at_once_lose_nothing(path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from msctx.native import tuning_file
from msctx.native.tuning_file import Entry, Stamp
for i in range(20):
    e = Entry("fprop", f"problem {{sys.argv[1]}} {{i}}", 1, "strict", "torch", "torch", 1.0, {{"torch": 1.0}}, "now")
    tuning_file.merge(Path({str(path)!r}), {{{STAMP!r}: {{e.key: e}}}})
"""
    writers = [subprocess.Popen([sys.executable, "-c", code, str(i)], cwd=ROOT) for i in range(3)]
    assert [writer.wait(timeout=100) for writer in writers] == [0] * 3
    assert {e.problem for e in tuned.entries(path)} == {f"problem {i} {j}" for i in range(3) for j in range(20)}
    assert not list(path.parent.glob("*.part"))


GOOD = tuning_file.text_of(tuned.groups(tuned.entry("p", threads=1), stamp=STAMP))
BROKEN = {
    "cut off": (GOOD[:200], "tuning.json:10:9  this is not JSON"),
    "foreign": ('{"name": "x"}', "this is no tuning file of this msctx"),
    "no groups": ('{"format": "msctx tuning 4.0"}', "an entry is not as msctx writes it: 'groups'"),
    "no stamp": (GOOD.replace('"isa"', '"isb"'), "unexpected keyword argument 'isb'"),
    "threads": (GOOD.replace('"threads": 1', '"threads": "1"'), "a field of another type"),
    "ratio": (GOOD.replace('"torch": 2.0', '"torch": -2.0'), "no ratio of times"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_file_is_reported_and_left_alone(broken: str, path: Path) -> None:
    text, message = BROKEN[broken]
    path.write_text(text)
    for act in (
        tuning_file.read,
        lambda path: tuning_file.merge(path, tuned.groups(ENTRIES[0], stamp=STAMP)),
        tuning_file.clear,
    ):
        with pytest.raises(FileError) as raised:
            act(path)
        for part in (str(path), message, "left as it is", "name another file with tuning_file"):
            assert part in str(raised.value)
    assert path.read_text() == text


def _run(**options: object) -> str:
    with msctx.context(conv_fprop_algo="performance", **options) as ctx:
        fn.conv2d(torch.ones(1, 2, 5, 6), torch.ones(2, 2, 3, 3))
    return str(ctx.choices()[0].reasons[0])


def test_a_file_that_is_broken_or_cannot_be_written_is_reported_and_the_context_goes_on(
    path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    path.write_text("{")
    for _ in range(2):
        assert _run(tuning_file=path) == "measured in this process"
        _run(tuning_file=NOWHERE)
    used, kept, lost = {str(w.message): None for w in recwarn if issubclass(w.category, msctx.MsctxWarning)}
    assert used.startswith(f"the tuning file is not used: {path}:1:2  this is not JSON")
    assert kept.startswith("what was measured or recorded is not kept")
    assert lost.startswith(f"what was measured or recorded is not kept: {NOWHERE}  cannot be written: ")
    assert path.read_text() == "{"


# --- the stamp of results on CUDA, with GPUs that are made up -----------------------------------------------------------


Gpus = Callable[..., None]


def of_cuda() -> Stamp:
    stamp.cache_clear()
    return stamp(core.load(), "cuda")


def test_it_names_the_gpu_its_software_and_our_kernels(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(("H200", 9, 0), ("H200", 9, 0))
    monkeypatch.setattr(compiled_kernels, "find_nvrtc", lambda: compiled_kernels.Nvrtc("libnvrtc.so", "13.0"))
    found = of_cuda()
    assert (found.cpu, found.flags, found.isa) == ("H200", "sm_90, driver 580.1", "cuDNN 91900")
    assert found.torch.endswith(" CUDA 13.0")
    assert found.kernels == compiled_kernels.origin()[:16]
    assert (found.place, stamp(core.load()).place) == ("cuda", "cpu")

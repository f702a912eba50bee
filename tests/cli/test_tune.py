"""msctx tune: run, show, export, import and clear; and where a tuning file is looked for."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from msctx.cli import doctor, main
from msctx.compare.offline import Bench
from msctx.native import build, core, tuning_file, untuned
from msctx.native.environment_key import Stamp, stamp
from msctx.native.tuning_file import Entry
from msctx.native.untuned import Untuned
from msctx.run.config import read
from msctx.run.runner import config

OTHER = Stamp("Processor 9", "avx2 fma", "avx2", "2.13.0 AVX2", "0123456789abcdef", "c++ 12", "0.1.0")
ENTRY = Entry(
    "fprop", "1x3x8x8 * 4x3x3x3, float32", 2, "strict", "gemm", "strict", {"torch": 1.25, "gemm": 1.0}, "2026-01-02T03:04Z"
)


@pytest.fixture
def tune(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """Run a command; returns (exit code, stdout, stderr)."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words: Any) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(["tune", *map(str, words)])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return int(end.value.code or 0), out, err

    return run


def write(path: Path, which: Stamp, *entries: Entry) -> Path:
    tuning_file.merge(path, {which: {e.key: e for e in entries}}, override=True)
    return path


def here() -> Stamp:
    if why := build.obstacle():
        pytest.skip(why)
    return stamp(core.load())


def test_show(tune: Any, own_tuning_file: Path) -> None:
    assert tune("show")[1].startswith(f"{own_tuning_file}: not there yet")
    write(own_tuning_file, here(), ENTRY)
    write(own_tuning_file, replace(here(), cpu="Processor 9", flags="none of these"), ENTRY, replace(ENTRY, threads=4))
    write(own_tuning_file, replace(here(), compiler="c++ 1"), ENTRY)
    code, out, _ = tune("show")
    assert code == 0
    for part in (
        "4 entries",
        "used here\n",
        "used here (another compiler)",
        "not used here: another cpu, flags",
        ENTRY.problem,
        "1.25x",
    ):
        assert part in out
    found = json.loads(tune("show", "--json")[1])
    assert (found["file"], found["stamps_here"]) == (str(own_tuning_file), {"cpu": asdict(here())})
    assert {(g["stamp"]["cpu"], g["used"], len(g["entries"])) for g in found["groups"]} == {
        ("Processor 9", False, 2),
        (here().cpu, True, 1),
    }
    assert found["groups"][0]["entries"][0]["measured"] == ENTRY.measured


def test_export_and_import_are_round_trips(tune: Any, tmp_path: Path, own_tuning_file: Path) -> None:
    write(own_tuning_file, OTHER, ENTRY)
    exported = tmp_path / "mine.json"
    code, out, _ = tune("export", exported, "--json")
    assert (code, json.loads(out)) == (
        0,
        {"from": str(own_tuning_file), "to": str(exported), "added": 1, "replaced": 0, "same": 0},
    )
    assert exported.read_bytes() == own_tuning_file.read_bytes()
    own_tuning_file.unlink()
    tune("import", exported)
    assert exported.read_bytes() == own_tuning_file.read_bytes()


def test_what_is_imported_wins(tune: Any, tmp_path: Path, own_tuning_file: Path) -> None:
    write(own_tuning_file, OTHER, ENTRY, replace(ENTRY, problem="mine alone"))
    theirs = write(tmp_path / "theirs.json", OTHER, replace(ENTRY, ran="fft"), replace(ENTRY, threads=8))
    found = json.loads(tune("import", theirs, "--json")[1])
    assert (found["added"], found["replaced"], found["same"]) == (1, 1, 0)
    merged = tuning_file.read(own_tuning_file)[OTHER]
    assert {(e.problem, e.threads): e.ran for e in merged.values()} == {
        (ENTRY.problem, 2): "fft",
        (ENTRY.problem, 8): "gemm",
        ("mine alone", 2): "gemm",
    }
    assert json.loads(tune("import", theirs, "--json")[1])["same"] == 2


def test_clear_says_what_it_removed(tune: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "tuning.json", here(), ENTRY)
    write(path, OTHER, ENTRY, replace(ENTRY, threads=4))
    assert json.loads(tune("clear", "--stale", "--file", path, "--json")[1]) == {"file": str(path), "removed": 2}
    assert set(tuning_file.read(path)) == {here()}
    assert json.loads(tune("clear", "--file", path, "--json")[1])["removed"] == 1
    assert not path.exists()
    assert "removed" in tune("clear", "--file", path)[1]


def test_results_of_cuda_are_held_against_cudas_own_stamp(
    tune: Any, own_tuning_file: Path, gpus: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(("H200", 9, 0))
    cpu, mine = here(), stamp(core.load(), "cuda")
    other = replace(mine, cpu="A100", flags="sm_80, driver 580.1")
    for which in (mine, other, cpu, OTHER):
        write(own_tuning_file, which, ENTRY)

    def used() -> dict[str, bool | None]:
        return {g["stamp"]["cpu"]: g["used"] for g in json.loads(tune("show", "--json")[1])["groups"]}

    assert used() == {"H200": True, "A100": False, cpu.cpu: True, OTHER.cpu: False}
    assert "another cpu, flags" in tune("show")[1]
    assert "4 entries, 2 of them used here" in next(doctor._tuning()).found
    for nothing_to_ask in ((), (("H200", 9, 0), ("A100", 8, 0))):
        with monkeypatch.context() as patch:
            patch.setattr(tuning_file, "IN_CACHE", write(own_tuning_file.with_name("copy.json"), OTHER, ENTRY))
            for which in (mine, other, cpu):
                write(tuning_file.IN_CACHE, which, ENTRY)
            gpus(*nothing_to_ask)
            assert used() == {"H200": None, "A100": None, cpu.cpu: True, OTHER.cpu: False}
            assert "of cuda, which cannot be asked here" in tune("show")[1]
            assert json.loads(tune("clear", "--stale", "--json")[1])["removed"] == 1
            assert set(tuning_file.read(tuning_file.IN_CACHE)) == {mine, other, cpu}
    gpus(("H200", 9, 0))
    assert json.loads(tune("clear", "--stale", "--json")[1])["removed"] == 2
    assert set(tuning_file.read(own_tuning_file)) == {mine, cpu}


def test_clear_through_a_link_clears_what_it_leads_to(tune: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "tuning.json", here(), ENTRY)
    link = tmp_path / "link.json"
    link.symlink_to(path)
    assert json.loads(tune("clear", "--file", link, "--json")[1])["removed"] == 1
    assert link.is_symlink()
    assert not path.exists()


def test_a_pipe_is_not_waited_for_and_a_byte_order_mark_is_no_mistake(tune: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    code, _, err = tune("show", "--file", tmp_path / "pipe")
    assert code == 3
    assert "is no regular file" in err
    path = write(tmp_path / "tuning.json", here(), ENTRY)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert len(json.loads(tune("show", "--file", path, "--json")[1])["groups"]) == 1


@pytest.mark.parametrize("words", [("show", "--file"), ("export", "x.json", "--file"), ("import",), ("clear", "--file")])
def test_a_broken_file_ends_the_command_and_stays(tune: Any, words: tuple[str, ...], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.json").write_text("{")
    code, out, err = tune(*words, "broken.json")
    assert (code, out) == (3, "")
    assert f"{tmp_path / 'broken.json'}:1:2  this is not JSON" in err
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == ["broken.json"]


@pytest.mark.parametrize("words", [("export", "x.json"), ("import", "none.json")])
def test_what_is_not_there_cannot_be_copied(tune: Any, words: tuple[str, ...], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = tune(*words)
    assert (code, "there is no such file" in err) == (3, True)
    assert not list(tmp_path.iterdir())


def test_the_option_names_the_file_of_the_commands(tune: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "tuning.json", OTHER, ENTRY)
    monkeypatch.setenv("MSCTX_TUNING_FILE", str(path))
    assert json.loads(tune("show", "--json")[1])["file"] == str(path)


def test_in_an_experiment_it_lies_beside_the_file_and_is_recorded_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "job.yaml").write_text("context: {conv_fprop_algo: performance, tuning_file: tuned/job.json}\n")
    experiment = read("../job.yaml", ())
    setting = experiment.settings.get("tuning_file")
    assert setting is not None
    assert Path(setting.value).resolve() == tmp_path / "tuned" / "job.json"
    assert config(experiment)["context"]["tuning_file"] == str(tmp_path / "tuned" / "job.json")
    said = read(None, ["tuning_file=here.json"]).settings.get("tuning_file")
    assert said is not None
    assert tuning_file.location(said.value) == tmp_path / "elsewhere" / "here.json"


# --- run --------------------------------------------------------------------------------------------------------------

FORWARD = Untuned("cpu", "fprop", "1x3x6x6 * 4x3x3x3, float32, channels_first", 1, "strict, fp32-grade", 7)
PROBLEMS = [FORWARD, replace(FORWARD, direction="wgrad", calls=1)]


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    (tmp_path / "msctx_untuned_a.json").write_text(untuned.text_of(PROBLEMS[:1]))
    (tmp_path / "msctx_untuned_b.json").write_text(untuned.text_of(PROBLEMS[1:]))
    return tmp_path


def test_run_measures_what_was_recorded(tune: Any, recorded: Path, own_tuning_file: Path) -> None:
    code, out, err = tune("run", recorded)
    assert code == 0
    for part in ("fprop", FORWARD.problem, "torch takes", "2 measured, 0 known before, 0 not measured", str(own_tuning_file)):
        assert part in out
    assert f"fprop={FORWARD.problem}  measured=" in err
    entries = [entry for group in tuning_file.read(own_tuning_file).values() for entry in group.values()]
    assert {(e.direction, e.problem, e.threads, e.permissions) for e in entries} == {
        (p.direction, p.problem, p.threads, p.permissions) for p in PROBLEMS
    }
    found = json.loads(tune("run", recorded, "--json")[1])
    assert found["records"] == [str(recorded / f"msctx_untuned_{name}.json") for name in "ab"]
    assert found["file"] == str(own_tuning_file)
    first = found["problems"][0]
    assert {name: first[name] for name in asdict(FORWARD)} == asdict(FORWARD), "what computes most comes first"
    assert [one["status"] for one in found["problems"]] == ["known", "known"]
    assert first["gain"] == next(e.measured["torch"] for e in entries if e.direction == "fprop")


def test_run_takes_a_file_and_writes_where_it_is_told(tune: Any, recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(recorded)
    code, out, _ = tune("run", "msctx_untuned_a.json", "--file", "mine.json", "--seconds", "100")
    assert (code, "1 measured" in out, len(tuning_file.read(recorded / "mine.json"))) == (0, True, 1)
    found = json.loads(tune("run", "--file", "mine.json", "--seconds", "0", "--json")[1])
    assert [(one["status"], one["why"]) for one in found["problems"]] == [("known", ""), ("left", "no time was left")]


def test_run_ends_with_one_message_where_there_is_nothing_to_measure(tune: Any, recorded: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for place, message in (
        (tmp_path / "none", "there is no such file"),
        (tmp_path / "empty", "holds no file of recorded problems"),
    ):
        code, out, err = tune("run", place)
        assert (code, out) == (3, "")
        assert f"{place}  {message}" in err
        assert 'record with aoe_tune_mode="offline" first' in err
    (recorded / "msctx_untuned_c.json").write_text('{"format": "msctx untuned 2.0"}')
    code, out, err = tune("run", recorded, "--json")
    assert (code, json.loads(err or out)["exit_code"]) == (3, 3)
    assert not (recorded / "mine.json").exists()
    code, _, err = tune("run", recorded / "msctx_untuned_a.json", "--file", "/sys/mine.json")
    assert (code, "/sys/mine.json  cannot be written" in err) == (3, True)


def test_ctrl_c_shows_and_keeps_what_is_done(
    tune: Any, recorded: Path, monkeypatch: pytest.MonkeyPatch, own_tuning_file: Path
) -> None:
    measure = Bench.result

    def interrupted(bench: Bench, one: Untuned) -> Any:
        if one.direction == "wgrad":
            raise KeyboardInterrupt
        return measure(bench, one)

    monkeypatch.setattr(Bench, "result", interrupted)
    code, out, err = tune("run", recorded)
    assert (code, "1 measured" in out) == (130, True)
    assert "1 of 2 problems are done" in err
    assert len(tuning_file.read(own_tuning_file)) == 1

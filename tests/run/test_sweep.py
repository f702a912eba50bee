"""A grid of runs, one process each, one summary."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import is_running, until

from msctx.cli import main
from msctx.errors import FileError, OptionError
from msctx.run import sweep
from msctx.run.ending import Terminated

ENTRY = """
import torch
def train(scale: float = 1.0):
    if scale == 3:
        raise ValueError("three is too many")
    return {"deterministic": torch.are_deterministic_algorithms_enabled(), "loss": scale * 2}
"""


@pytest.fixture
def experiment(tmp_path: Path) -> str:
    (tmp_path / "entry.py").write_text(ENTRY)
    text = f"context: {{seed: 1}}\nexperiment: {{name: mine, entry: entry.py:train}}\nrecord: {{dir: {tmp_path}/runs}}\n"
    (tmp_path / "train.yaml").write_text(text)
    return str(tmp_path / "train.yaml")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["run", *words])
    out, err = capsys.readouterr()
    assert "Traceback (most" not in err.replace("Traceback (most recent call last):\\n", "")
    return int(end.value.code or 0), out, err


@pytest.mark.full
def test_a_grid_has_one_summary(experiment: str, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    code, text, told = run(
        capsys, experiment, "--sweep", "deterministic=ON,OFF", "--sweep", "args.scale=1,2.5", "--out", str(out)
    )
    assert code == 0
    found = json.loads((out / "sweep.json").read_text())
    assert found["partial"] is False
    assert [one["point"] for one in found["points"]] == [
        {"deterministic": d, "args.scale": s} for d in ("ON", "OFF") for s in (1, 2.5)
    ]
    assert [(one["result"]["deterministic"], one["result"]["loss"]) for one in found["points"]] == [
        *((True, 2), (True, 5.0), (False, 2), (False, 5.0))
    ]
    lines = [*csv.DictReader((out / "sweep.csv").open())]
    assert [line["loss"] for line in lines] == ["2", "5.0", "2", "5.0"]
    assert (out / "4" / "state.json").exists()
    assert "4 of 4: deterministic=OFF args.scale=2.5: completed" in told
    assert "deterministic" in text


@pytest.mark.full
def test_a_run_that_fails_does_not_end_it(experiment: str, tmp_path: Path, capsys: Any) -> None:
    code, text, _ = run(capsys, experiment, "--sweep", "args.scale=3,1", "--out", str(tmp_path / "out"), "--json")
    failed, done = json.loads(text)["points"]
    assert code == 1
    assert "three is too many" in failed["result"]["error"]
    assert done["result"]["status"] == "completed"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["deterministic=ON,OF"], "'OF' is not one of the values"),
        (["determinstic=ON,OFF"], "did you mean deterministic?"),
        (["deterministic"], "is not KEY=VALUE,VALUE"),
        (["seed=1,2", "seed=3"], "seed is named twice"),
        (["experiment.sed=1,2"], "unknown key"),
        (["runtime_num_threads=01,2"], "write the number without the leading zero"),
        (["args.scale=[]"], "args.scale has no values"),
    ],
)
def test_mistakes_are_told_before_anything_runs(
    experiment: str, tmp_path: Path, capsys: Any, words: list[str], told: str
) -> None:
    code, _, err = run(capsys, experiment, *(part for word in words for part in ("--sweep", word)))
    assert code == 2
    assert told in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.full
def test_types_and_what_an_entry_prints_do_not_matter(experiment: str, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "entry.py").write_text(
        "import os\ndef train(name='', scale=1):\n    os.system('echo {')\n    return {'kind': type(name).__name__, 'name': name}\n"
    )
    code, text, _ = run(capsys, experiment, "--sweep", "args.name=['5','true','a,b']", "--out", str(tmp_path / "out"), "--json")
    results = [one["result"] for one in json.loads(text)["points"]]
    assert code == 0
    assert [(one["kind"], one["name"]) for one in results] == [("str", "5"), ("str", "true"), ("str", "a,b")]


def test_ctrl_c_keeps_what_there_is(experiment: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_point(children: Any, file: str, words: list[str], folder: Path) -> dict[str, Any]:
        if folder.name == "3":
            raise KeyboardInterrupt
        return {"status": "completed", "loss": float(folder.name)}

    monkeypatch.setattr(sweep, "run_point", run_point)
    out = tmp_path / "out"
    code, text, err = run(capsys, experiment, "--sweep", "args.scale=1,2,3,4", "--out", str(out), "--json")
    found = json.loads(text)
    assert (code, found["partial"], [row["result"]["loss"] for row in found["points"]]) == (130, True, [1.0, 2.0])
    assert found == json.loads((out / "sweep.json").read_text())
    assert [line["loss"] for line in csv.DictReader((out / "sweep.csv").open())] == ["1.0", "2.0"]
    assert f"{out / 'sweep.json'} holds the finished runs, marked as partial" in err


@pytest.mark.parametrize("signalled", [KeyboardInterrupt, Terminated])
def test_a_signal_between_two_runs_leaves_a_record_that_is_partial(
    experiment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signalled: type[BaseException]
) -> None:
    """Each result is on disk before it is reported, so that a sweep that is killed then loses none. After a signal that follows even
    the last one, a resumed sweep is whole, and runs nothing."""
    ran: list[str] = []
    monkeypatch.setattr(
        sweep, "run_point", lambda children, file, words, folder: ran.append(folder.name) or {"status": "completed"}
    )
    seen: list[tuple[bool, int]] = []

    def written() -> tuple[bool, int]:
        found = json.loads((tmp_path / "out" / "sweep.json").read_text())
        return found["partial"], len(found["points"])

    def done(number: int, *_: object) -> None:
        seen.append(written())
        raise signalled

    given = (experiment, "x", [], {"args.scale": [1, 2]}, str(tmp_path / "out"), "", done)
    for number in (1, 2):
        with pytest.raises(sweep.Interrupted):
            sweep.sweep(*given, resume=number > 1)
        assert written() == (True, number)
    assert seen == [(True, 1), (False, 2)]
    sweep.sweep(*given, resume=True)
    assert (ran, written()) == (["1", "2"], (False, 2))


def test_ctrl_c_ends_the_engine_whose_order_does_not_matter(experiment: str, tmp_path: Path) -> None:
    """Jobs that wait are cancelled before the sweep ends."""
    ended: list[bool] = []

    def backwards(file: str, points: list[Any], scratch: Path) -> sweep.Results:
        try:
            for number, _, _ in reversed(points):
                yield number, {"status": "completed"}
        finally:
            ended.append(True)

    def done(number: int, *_: object) -> None:
        if number == 2:
            raise KeyboardInterrupt

    with pytest.raises(sweep.Interrupted) as end:  # which holds the generator: that it is closed is no collector's work
        sweep.sweep(experiment, "x", [], {"args.scale": [1, 2, 3]}, str(tmp_path / "out"), "", done, engine=backwards)
    found = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert (ended, [row["number"] for row in found["points"]]) == ([True], [2, 3])
    assert end.value.folder == tmp_path / "out"


def test_a_sweep_goes_on_where_it_stopped(
    experiment: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was completed is not run again; what failed is, in a folder of its own."""
    ran: list[str] = []

    def run_point(children: Any, file: str, words: list[str], folder: Path) -> dict[str, Any]:
        ran.append(folder.name)
        folder.mkdir()
        return {"status": "failed" if words == ["args.scale=3"] and len(ran) < 4 else "completed", "loss": 1.0}

    def done(number: int, *_: object) -> None:
        if number == 2 and len(ran) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "run_point", run_point)
    grid, out = {"args.scale": [1, 3, 2]}, tmp_path / "out"
    with pytest.raises(sweep.Interrupted):
        sweep.sweep(experiment, "x", [], grid, str(out), "", done)
    found = sweep.sweep(experiment, "x", [], grid, str(out), "", done, resume=True)
    assert ran == ["1", "2", "2-2", "3"]
    assert [row["result"]["status"] for row in found["points"]] == ["completed", "failed", "completed"]
    again = sweep.sweep(experiment, "x", [], grid, str(out), "", resume=True)
    assert ran[4:] == ["2-3"]
    assert {row["result"]["status"] for row in again["points"]} == {"completed"}
    assert json.loads((out / "sweep.json").read_text()) == {key: value for key, value in again.items() if key != "dir"}
    code, _, err = run(capsys, experiment, "--sweep", "args.scale=1,2", "--out", str(out), "--resume")
    assert code == 3
    assert "holds another grid" in err
    code, _, err = run(capsys, experiment, "--sweep", "args.scale=1,2", "--out", str(tmp_path / "no"), "--resume")
    assert code == 3
    assert "there is no sweep to resume" in err


def test_a_sweep_goes_on_with_the_settings_of_its_beginning_alone(
    experiment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of other files or under other words are no grid."""
    monkeypatch.setattr(sweep, "run_point", lambda children, file, words, folder: {"status": "completed"})
    grid, out = {"args.scale": [1, 2]}, str(tmp_path / "out")
    sweep.sweep(experiment, "x", ["args.epochs=1"], grid, out, "")
    with pytest.raises(FileError, match=r'begun with other arguments beside the grid: \["args.epochs=1"\]'):
        sweep.sweep(experiment, "x", ["args.epochs=9"], grid, out, "", resume=True)
    (other := tmp_path / "other.yaml").write_text(Path(experiment).read_text())
    with pytest.raises(FileError, match="begun with another file: "):
        sweep.sweep(str(other), "x", ["args.epochs=1"], grid, out, "", resume=True)
    Path(experiment).write_text(other.read_text() + "# changed\n")
    with pytest.raises(FileError, match="begun before the file was changed"):
        sweep.sweep(experiment, "x", ["args.epochs=1"], grid, out, "", resume=True)


def test_values_that_are_equal_and_not_the_same_are_points_of_their_own(
    experiment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def run_point(children: Any, file: str, words: list[str], folder: Path) -> dict[str, Any]:
        ran.append(folder.name)
        return {"status": "completed" if words != ["args.scale=1"] or len(ran) > 2 else "failed"}

    monkeypatch.setattr(sweep, "run_point", run_point)
    given = (experiment, "x", [], {"args.scale": [1, 1.0]}, str(tmp_path / "out"), "")
    sweep.sweep(*given)
    found = sweep.sweep(*given, resume=True)
    assert (ran, [row["number"] for row in found["points"]]) == (["1", "2", "1"], [1, 2])


def test_what_ended_after_the_sweep_was_killed_is_not_run_again(
    experiment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs of a cluster outlive who submitted them."""
    ran: list[str] = []
    monkeypatch.setattr(
        sweep, "run_point", lambda children, file, words, folder: ran.append(folder.name) or {"status": "completed"}
    )
    given, out = (experiment, "x", [], {"args.scale": [1, 2, 3]}, str(tmp_path / "out"), ""), tmp_path / "out"
    with pytest.raises(sweep.Interrupted):
        sweep.sweep(*given, lambda *_: interrupt())
    for place, status in (("2", "failed"), ("2-2/rank_0", "completed"), ("3", "failed")):
        (out / place).mkdir(parents=True)
        (out / place / "result.json").write_text(json.dumps({"status": status, "loss": 2.0}))
    found = sweep.sweep(*given, resume=True)
    assert ran == ["1", "3-2"]
    assert [row["result"].get("loss") for row in found["points"]] == [None, 2.0, None]


def interrupt() -> None:
    raise KeyboardInterrupt


def test_a_sweep_that_ended_in_its_first_point_goes_on(
    experiment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def run_point(children: Any, file: str, words: list[str], folder: Path) -> dict[str, Any]:
        ran.append(folder.name)
        folder.mkdir()
        if len(ran) == 1:
            raise MemoryError  # nothing is written any more, as when the process is killed
        return {"status": "completed"}

    monkeypatch.setattr(sweep, "run_point", run_point)
    given = (experiment, "x", [], {"args.scale": [1, 2]}, str(tmp_path / "out"), "")
    with pytest.raises(MemoryError):
        sweep.sweep(*given)
    assert len(sweep.sweep(*given, resume=True)["points"]) == 2
    assert ran == ["1", "1-2", "2"]


@pytest.mark.full
def test_points_as_jobs(experiment: str, tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("submitit")
    out = tmp_path / "out"
    words = ["--sweep", "args.scale=1,3,2", "--out", str(out), "--engine", "local", "--job", "timeout_min=5"]
    code, _, err = run(capsys, experiment, *words)
    assert code == 1
    found = json.loads((out / "sweep.json").read_text())
    assert [row["result"]["status"] for row in found["points"]] == ["completed", "failed", "completed"]
    assert "three is too many" in found["points"][1]["result"]["error"]
    assert "2 of 3: args.scale=3: failed" in err


@pytest.mark.full
def test_each_point_may_have_several_ranks(experiment: str, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    code, text, _ = run(capsys, experiment, "--sweep", "args.scale=1,2", "--nproc", "2", "--out", str(out), "--json")
    assert code == 0
    assert [row["result"]["loss"] for row in json.loads(text)["points"]] == [2, 4]
    assert json.loads((out / "2" / "ranks.json").read_text())["ranks"][1]["status"] == "completed"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--sweep", "seed=1,2", "--engine", "ray"], "'ray' is not an engine"),
        (["--sweep", "seed=1,2", "--engine", "local", "--job", "timeout_min"], "'timeout_min' is not KEY=VALUE"),
        (["--sweep", "seed=1,2", "--engine", "local", "--job", "nosuch=3"], "allowed: name, timeout_min, mem_gb"),
        (["--sweep", "seed=1,2", "--engine", "local", "--job", "timeout_mn=3"], "did you mean timeout_min?"),
        (["--sweep", "seed=1,2", "--engine", "slurm", "--job", "slurm_queue=a"], "slurm_account, slurm_additional_parameters"),
        (["--sweep", "seed=1,2", "--engine", "local", "--job", "timeout_min=soon"], "--job: timeout_min=soon is no int"),
        (["--sweep", "seed=1,2", "--engine", "slurm"], "--engine: slurm: "),
        (["--engine", "local"], "--engine: needs --sweep"),
        (["--resume"], "--resume: needs --sweep"),
        (["--sweep", "seed=1,2", "--nnodes", "2", "--rdzv", "a:1"], "--rdzv: does not go with --sweep"),
        (["--sweep", "seed=1,2", "--max-restarts", "1"], "--max-restarts: needs --nproc"),
    ],
)
def test_mistakes_about_where_points_run(experiment: str, tmp_path: Path, capsys: Any, words: list[str], told: str) -> None:
    pytest.importorskip("submitit")
    code, _, err = run(capsys, experiment, *words)
    assert code == 2
    assert told in err
    assert not (tmp_path / "runs").exists()


WAITS = """
import os, pathlib, subprocess, time
def train(number: int = 0):
    beside = subprocess.Popen(["sleep", "600"])
    part = pathlib.Path("pids.part")
    part.write_text(f"{os.getpid()} {beside.pid}")
    part.rename("pids")
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        beside.kill()
        beside.wait()
        raise
"""


@pytest.fixture
def waits(tmp_path: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], list[int]]]]:
    """Starts msctx in a process of its own; that and the processes of a run that waits, when it does."""
    (tmp_path / "entry.py").write_text(WAITS)
    (tmp_path / "train.yaml").write_text("experiment: {entry: entry.py:train}\n")
    (tmp_path / "tmp").mkdir()
    started: list[subprocess.Popen[str]] = []

    def start(*words: str) -> tuple[subprocess.Popen[str], list[int]]:
        command = [sys.executable, "-m", "msctx", *words]
        env = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
        started.append(subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True))
        until((tmp_path / "pids").exists)
        return started[-1], [int(number) for number in (tmp_path / "pids").read_text().split()]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.full), signal.SIGKILL])
@pytest.mark.parametrize(
    "words",
    [
        ("run", "train.yaml", "--sweep", "args.number=1,2", "--out", "out"),
        pytest.param(("compare", "train.yaml", "--axis", "deterministic=ON"), marks=pytest.mark.full),
    ],
    ids=["sweep", "compare"],
)
def test_whoever_is_ended_takes_the_run_with_it(waits: Any, tmp_path: Path, words: tuple[str, ...], number: int) -> None:
    process, runs = waits(*words)
    assert all(map(is_running, runs))
    process.send_signal(number)
    assert process.wait() == -number
    until(lambda: not any(map(is_running, runs)))
    until(lambda: not [*(tmp_path / "tmp").glob("msctx-compare-*")])


@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.full), (signal.SIGTERM, -signal.SIGTERM)]
)
def test_ctrl_c_and_sigterm_let_the_run_write_its_record(waits: Any, tmp_path: Path, number: int, code: int) -> None:
    process, runs = waits("run", "train.yaml", "--sweep", "args.number=1,2", "--out", "out")
    process.send_signal(number)
    assert process.wait() == code
    until(lambda: not any(map(is_running, runs)))
    assert json.loads((tmp_path / "out" / "1" / "result.json").read_text())["status"] == "interrupted"
    assert json.loads((tmp_path / "out" / "sweep.json").read_text())["partial"] is True


def test_a_dry_run_shows_the_grid(experiment: str, tmp_path: Path, capsys: Any) -> None:
    code, text, _ = run(capsys, experiment, "--sweep", "seed=1,2,3", "--dry-run", "--json")
    assert (code, json.loads(text)) == (0, [{"seed": 1}, {"seed": 2}, {"seed": 3}])
    assert not (tmp_path / "runs").exists()


def test_values_become_words_and_back() -> None:
    assert sweep.words_of({"a": "x,y", "b": True, "c": 1e-3, "d": [1, "2"], "e": "[1]"}) == [
        *("a=x,y", "b=true", "c=0.001", "d=[1, '2']", "e='[1]'")
    ]
    assert sweep.read(["conv_allow_tf32=true,false"]) == {"conv_allow_tf32": [True, False]}
    with pytest.raises(OptionError, match="2 problems"):
        sweep.read(["a", "nothing=3"])


def test_why_a_run_failed_is_a_field_of_its_result_and_not_read_out_of_its_text() -> None:
    told = 'loading\nValueError: the file "Traceback.txt" is\nnot there'
    assert sweep.why({"status": "failed", "error": told}) == "loading"
    assert sweep.why({"status": "failed", "error": told, "reason": "ValueError: no file"}) == "ValueError: no file"
    assert sweep.why({"status": "interrupted"}) == "interrupted"

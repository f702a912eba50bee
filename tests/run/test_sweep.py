"""A grid of runs, one process each, one summary."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from msctx.errors import FileError
from msctx.run import sweep
from msctx.run.experiment_and_entry import read

ENTRY = """
import torch
def train(scale: float = 1.0, name=""):
    if scale == 3:
        raise ValueError("three is too many")
    on = torch.are_deterministic_algorithms_enabled()
    return {"deterministic": on, "loss": scale * 2, "kind": type(name).__name__, "name": name}
"""


@pytest.fixture
def experiment(tmp_path):
    (tmp_path / "entry.py").write_text(ENTRY)
    text = f"context: {{seed: 1}}\nexperiment: {{name: mine, entry: entry.py:train}}\nrecord: {{dir: {tmp_path}/runs}}\n"
    (tmp_path / "train.yaml").write_text(text)
    return str(tmp_path / "train.yaml")


@pytest.mark.full
def test_a_grid_has_one_summary(experiment, tmp_path, command):
    out = tmp_path / "out"
    code, text, told = command(
        "run", experiment, "--sweep", "deterministic=ON,OFF", "--sweep", "args.scale=3,2.5", "--out", str(out)
    )
    assert code == 1
    found = json.loads((out / "sweep.json").read_text())
    assert found["partial"] is False
    assert [one["point"] for one in found["points"]] == [
        {"deterministic": d, "args.scale": s} for d in ("ON", "OFF") for s in (3, 2.5)
    ]
    failed, first, _, last = (one["result"] for one in found["points"])
    assert "three is too many" in failed["error"]
    assert (first["deterministic"], last["deterministic"], last["loss"]) == (True, False, 5.0)
    assert (out / "4" / "state.json").exists()
    assert "3 of 4: deterministic=OFF args.scale=3: failed: ValueError: three is too many" in told
    assert "4 of 4: deterministic=OFF args.scale=2.5: completed" in told
    assert "deterministic" in text


@pytest.mark.full
def test_texts_stay_texts(experiment, tmp_path, command):
    words = ("--sweep", "args.name=['5','true','a,b']", "--out", str(tmp_path / "out"), "--json")
    code, text, _ = command("run", experiment, *words)
    results = [one["result"] for one in json.loads(text)["points"]]
    assert code == 0
    assert [(one["kind"], one["name"]) for one in results] == [("str", "5"), ("str", "true"), ("str", "a,b")]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["ray"], "--engine: ray: "),
        (["local", "--job", "nosuch=3"], "'nosuch'"),
        (["local", "--job", "timeout_min=soon"], 'Parameter "timeout_min" expected'),
        (["slurm"], "--engine: slurm: "),
    ],
)
@pytest.mark.full
def test_mistakes_of_jobs_are_told_before_anything_runs(experiment, tmp_path, command, words, told):
    pytest.importorskip("submitit")
    code, _, err = command("run", experiment, "--sweep", "seed=1,2", "--engine", *words)
    assert code == 2
    assert told in err
    assert not [*tmp_path.glob("runs/mine*")]


def test_without_submitit_it_is_named(experiment, command, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    code, _, err = command("run", experiment, "--sweep", "seed=1,2", "--engine", "local")
    assert (code, "--engine: local: " in err, "pip install submitit" in err) == (2, True, True)


def test_a_dry_run_shows_the_grid(experiment, tmp_path, command):
    code, text, _ = command("run", experiment, "--sweep", "seed=1,2,3", "--dry-run", "--json")
    assert (code, json.loads(text)) == (0, [{"seed": 1}, {"seed": 2}, {"seed": 3}])
    assert not (tmp_path / "runs").exists()


def record(folder: Path, **result: Any) -> dict[str, Any]:
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(result))
    return result


class Runs:
    """Stands for the processes of points, by the names of their folders: those of *fails* fail, that of *ends* raises."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran, self.fails, self.ends, self.raises = list[str](), set[str](), "", KeyboardInterrupt
        monkeypatch.setattr(sweep, "run_point", self)

    def __call__(self, file: str, words: list[str], folder: Path) -> dict[str, Any]:
        self.ran.append(folder.name)
        if folder.name == self.ends:
            raise self.raises
        return record(folder, status="failed" if folder.name in self.fails else "completed", loss=float(folder.name))


@pytest.fixture
def runs(monkeypatch):
    return Runs(monkeypatch)


def go(file: str, out: Path, *values: float, resume: bool = False, words: tuple[str, ...] = ()) -> dict[str, Any]:
    return sweep.run(
        file, read(file), words, {"args.scale": list(values)}, str(out), lambda number, result: None, resume=resume
    )


def test_ctrl_c_keeps_what_there_is(experiment, tmp_path, command, runs):
    runs.ends, out = "3", tmp_path / "out"
    code, text, err = command("run", experiment, "--sweep", "args.scale=1,2,3,4", "--out", str(out), "--json")
    found = json.loads(text)
    assert (code, found["partial"], [row["result"]["loss"] for row in found["points"]]) == (130, True, [1.0, 2.0])
    assert found == json.loads((out / "sweep.json").read_text())
    assert f"{out / 'sweep.json'} holds the finished runs, marked as partial" in err


@pytest.mark.parametrize("raised", [KeyboardInterrupt, MemoryError])
def test_a_sweep_goes_on_where_it_stopped(experiment, tmp_path, runs, raised):
    """Completed points are not run again; failed ones are. After MemoryError nothing is written, as when the process is killed."""
    runs.ends, runs.raises, runs.fails = "3", raised, {"2"}
    with pytest.raises(MemoryError if raised is MemoryError else sweep.Interrupted):
        go(experiment, tmp_path / "out", 1, 2, 4, 5)
    runs.ends, runs.fails = "", set()
    found = go(experiment, tmp_path / "out", 1, 2, 4, 5, resume=True)
    assert runs.ran == ["1", "2", "3", "2", "3", "4"]
    assert {row["result"]["status"] for row in found["points"]} == {"completed"}
    assert json.loads((tmp_path / "out" / "sweep.json").read_text()) == {k: v for k, v in found.items() if k != "dir"}


def test_jobs_that_completed_after_the_sweep_was_killed_are_kept(experiment, tmp_path, runs):
    runs.ends, out = "2", tmp_path / "out"
    with pytest.raises(sweep.Interrupted):
        go(experiment, out, 1, 2, 4)
    record(out / "2" / "rank_0", status="completed", loss=7.0)
    runs.ends = ""
    assert [row["result"]["loss"] for row in go(experiment, out, 1, 2, 4, resume=True)["points"]] == [1.0, 7.0, 3.0]


def test_a_sweep_goes_on_only_with_the_settings_of_its_beginning(experiment, tmp_path, runs):
    out = tmp_path / "out"
    go(experiment, out, 1, 2, words=("seed=1",))
    with pytest.raises(FileError, match="no sweep with this sweep has begun here"):
        go(experiment, out, 1, words=("seed=1",), resume=True)
    with pytest.raises(FileError, match="no sweep with this words"):
        go(experiment, out, 1, 2, words=("seed=9",), resume=True)
    Path(experiment).write_text(Path(experiment).read_text() + "# changed\n")
    with pytest.raises(FileError, match="no sweep with this content"):
        go(experiment, out, 1, 2, words=("seed=1",), resume=True)
    with pytest.raises(FileError, match="no sweep with this file"):
        go(experiment, tmp_path / "no", 1, 2, resume=True)


@pytest.mark.full
def test_points_as_jobs_and_of_several_ranks(experiment, tmp_path, command):
    pytest.importorskip("submitit")
    out = tmp_path / "out"
    words = ["--sweep", "args.scale=1,3", "--out", str(out), "--engine", "local", "--job", "timeout_min=5", "--nproc", "2"]
    code, _, err = command("run", experiment, *words)
    assert code == 1
    found = json.loads((out / "sweep.json").read_text())
    assert [row["result"]["status"] for row in found["points"]] == ["completed", "failed"]
    assert "three is too many" in found["points"][1]["result"]["error"]
    assert "2 of 2: args.scale=3: failed" in err
    assert json.loads((out / "1" / "rank_1" / "result.json").read_text())["status"] == "completed"
    assert len([*out.glob("*_submitted.pkl")]) == 2

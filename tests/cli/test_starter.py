"""What the command line writes for a user to start from: never over a file, and valid."""

import json
import re
from pathlib import Path

import pytest

from msctx import schema
from msctx.cli import option_file_and_state_commands
from msctx.options import find
from msctx.run.experiment_and_entry import read

TEXT = option_file_and_state_commands.text("mine.yaml")
LINES = TEXT.splitlines()
COMMENTED = [number for number, line in enumerate(LINES) if re.match(r"  # [a-z_0-9]+: ", line)]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_works_as_it_stands(command):
    code, out, _ = command("init", "mine.yaml")
    assert code == 0
    assert "msctx run mine.yaml" in out
    code, out, _ = command("explain", "mine.yaml", "--device", "cpu")
    assert code == 0
    assert "2 of 2 options take effect" in out
    experiment = read("mine.yaml")
    assert (experiment.name, experiment.entry, experiment.record_dir) == ("mine", "train.py:main", "runs")
    code, out, err = command("run", "mine.yaml", "args.steps=10", "--out", "out")
    assert code == 0, err
    assert json.loads(Path("out/result.json").read_text())["status"] == "completed"
    assert "step=10" in out + err


@pytest.mark.parametrize("number", COMMENTED, ids=[LINES[n].strip("# ").partition(":")[0] for n in COMMENTED])
def test_each_line_can_be_taken_in(number, folder):
    lines = [*LINES]
    lines[number] = lines[number].replace("# ", "", 1)
    (folder / "mine.yaml").write_text("\n".join(lines), encoding="utf-8")
    key = lines[number].strip().partition(":")[0]
    levels = read("mine.yaml").levels
    if key == "preset":
        assert levels["preset"].settings
    else:
        assert any(spelling.split(".")[0] == key for spelling in levels["yaml"].settings)
        assert find(key) is not None or key == "gpu_config"


ODD = ["b c.yaml", "1.yaml", "on.yaml", "true.yml", "it's.yaml", "-.yaml", "ö.yaml", "a\nb.yaml", "1e5.yaml"]


@pytest.mark.parametrize("name", ODD, ids=repr)
def test_any_file_name_gives_a_file_that_is_taken(name):
    path = option_file_and_state_commands.write(name)[0]
    assert read(str(path)).name
    assert path.read_text(encoding="utf-8").count("\n") == len(LINES)


def test_the_schema_lies_where_the_file_says(folder):
    (folder / "sub").mkdir()
    path, beside, entry = option_file_and_state_commands.write("sub/mine.yaml")
    assert entry == Path("sub/train.py")
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first == "# yaml-language-server: $schema=msctx.schema.json"
    assert path.parent / first.partition("=")[2] == beside
    assert beside.read_text(encoding="utf-8") == schema.dump()


def test_an_existing_file_is_left_alone(folder, command):
    (folder / "mine.yaml").write_text("mine", encoding="utf-8")
    code, out, err = command("init", "mine.yaml")
    assert (code, out) == (3, "")
    assert "mine.yaml  exists already; nothing was written" in err
    assert (folder / "mine.yaml").read_text(encoding="utf-8") == "mine"
    assert [path.name for path in folder.iterdir()] == ["mine.yaml"]


def test_an_entry_of_the_users_own_is_left_alone(folder, command):
    (folder / "train.py").write_text("mine", encoding="utf-8")
    code, out, _ = command("init", "mine.yaml")
    assert code == 0
    assert "next: name a function of your train.py in its experiment.entry, then msctx run mine.yaml" in out
    assert (folder / "train.py").read_text(encoding="utf-8") == "mine"


def test_a_second_experiment_brings_the_schema_up_to_date(folder):
    (folder / option_file_and_state_commands.SCHEMA).write_text("{}", encoding="utf-8")
    option_file_and_state_commands.write("mine.yaml")
    assert (folder / option_file_and_state_commands.SCHEMA).read_text(encoding="utf-8") == schema.dump()

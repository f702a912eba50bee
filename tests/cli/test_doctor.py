"""doctor tells what is missing; tune shows and clears what was measured."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import pytest

from msctx.cli.machine_commands import checks
from msctx.native import build, core, tuning_file
from msctx.native.tuning_file import Entry, Stamp, stamp
from msctx.run.experiment_and_entry import read
from msctx.run.runner import config


def test_without_torch(passes_fresh):
    out = passes_fresh("""
        import sys
        sys.modules["torch"] = None
        from msctx.cli.machine_commands import checks
        for check in checks():
            print(check.name, check.status, check.fix)
    """)
    lines = out.splitlines()
    assert [line for line in lines if " broken " in line] == ["torch broken pip install 'torch>=2.11'"]
    assert any(line.startswith("C++ compiler ok") for line in lines)


def test_a_check_that_fails_is_told_and_the_others_go_on(monkeypatch):
    monkeypatch.setattr("msctx.cli.machine_commands._compilers", lambda: 1 / 0)
    found = list(checks())
    assert any(check.status == "broken" and "ZeroDivisionError" in check.found for check in found)
    assert any(check.name == "scikit-learn" for check in found)


@pytest.mark.full
@pytest.mark.parametrize("command", ["migrate script.py", "doctor", "explain --device ascend matmul_allow_hf32=true"])
def test_torch_npu_without_cann_is_named_with_what_to_do(tmp_path, command):
    """torch loads each installed package for devices, and raises where one cannot be loaded."""
    (tmp_path / "torch_npu.py").write_text("raise ImportError('libhccl.so: cannot open shared object file')")
    (tmp_path / "torch_npu-2.13.0.dist-info").mkdir()
    (tmp_path / "torch_npu-2.13.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: torch_npu\nVersion: 2.13.0\n")
    (tmp_path / "torch_npu-2.13.0.dist-info/entry_points.txt").write_text("[torch.backends]\ntorch_npu = torch_npu:_autoload\n")
    (tmp_path / "script.py").write_text("import mindspore as ms\nms.set_context(device_target='Ascend', device_id=0)\n")
    variables = {**os.environ, "PYTHONPATH": str(tmp_path), "TORCH_DEVICE_BACKEND_AUTOLOAD": "1", "COLUMNS": "400"}
    words = (sys.executable, "-m", "msctx", *command.split())
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path, env=variables)
    assert "Traceback" not in done.stderr
    if command.startswith("explain"):  # a plan of another machine needs no torch
        assert done.returncode == 0
        assert "torch.npu.matmul.allow_hf32 = True" in done.stdout
    else:
        assert done.returncode > 0
        told = " ".join((done.stdout + done.stderr).split())
        assert "Failed to load the backend extension: torch_npu" in told
        assert "source CANN's set_env.sh" in told
        assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in told


FIGURES = {"torch": 1.25, "gemm": 1.0}
KEY = ("fprop", "1x3x8x8 * 4x3x3x3, float32", 2, "strict")
ENTRY = Entry(*KEY, "gemm", "strict", 1.02, FIGURES, "2026-01-02T03:04Z")


@pytest.fixture
def tune(command):
    return partial(command, "tune")


def write(path: Path, which: Stamp, *entries: Entry) -> Path:
    tuning_file.merge(path, {which: {e.key: e for e in entries}})
    return path


def here() -> Stamp:
    if why := build.obstacle():
        pytest.skip(why)
    return stamp(core.load())


def test_show_and_clear(tune, own_tuning_file):
    assert tune("show")[1].startswith(f"{own_tuning_file}: not there yet")
    recorded = replace(ENTRY, direction="wgrad", ran="", math="", measured={})
    write(own_tuning_file, here(), ENTRY, recorded, replace(recorded, direction="dgrad", math="under other load"))
    write(own_tuning_file, replace(here(), cpu="Processor 9", flags="none of these"), ENTRY, replace(ENTRY, threads=4))
    code, out, _ = tune("show")
    assert code == 0
    uses = ("used here\n", "not used here: another cpu, flags")
    parts = ("5 entries", *uses, ENTRY.problem, "1.25x", "1.02x", "under other load")
    assert [part for part in (*parts, "not measured yet") if part not in out] == []
    found = json.loads(tune("show", "--json")[1])
    assert (found["file"], found["stamps_here"]) == (str(own_tuning_file), {"cpu": asdict(here())})
    assert sorted((g["used"], len(g["entries"])) for g in found["groups"]) == [(False, 2), (True, 3)]
    assert json.loads(tune("clear", "--json")[1]) == {"file": str(own_tuning_file), "removed": 5}
    assert not own_tuning_file.exists()
    assert "removed" in tune("clear")[1]


def test_the_option_names_the_file_of_the_commands(tune, tmp_path, monkeypatch):
    monkeypatch.setenv("MSCTX_TUNING_FILE", str(tmp_path / "tuning.json"))
    assert json.loads(tune("show", "--json")[1])["file"] == str(tmp_path / "tuning.json")


def test_in_an_experiment_it_lies_beside_the_file(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "job.yaml").write_text("context: {conv_fprop_algo: performance, tuning_file: tuned/job.json}\n")
    experiment = read("../job.yaml", ())
    assert config(experiment)["context"]["tuning_file"] == str(tmp_path / "tuned" / "job.json")
    said = read(None, ["tuning_file=here.json"]).settings.get("tuning_file")
    assert said is not None
    assert tuning_file.location(said.value) == tmp_path / "elsewhere" / "here.json"
